"""Where the checkout, its models and its tests are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
MODELS = ROOT / "models"
