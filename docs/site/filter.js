// Cells know their column's title, for narrow screens. Above each long table is a box; only the rows that have every
// word typed into it are shown.
for (const table of document.querySelectorAll(".md-typeset table")) {
  const titles = [...table.querySelectorAll("thead th")].map((title) => title.textContent);
  const rows = [...table.querySelectorAll("tbody tr")];
  for (const row of rows)
    [...row.cells].forEach((cell, column) => {
      if (titles[column] && cell.textContent) cell.dataset.label = titles[column];
    });
  if (rows.length < 15) continue;
  const box = document.createElement("input");
  box.className = "filter";
  box.type = "search";
  box.placeholder = `Filter ${rows.length} rows`;
  box.ariaLabel = box.placeholder;
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.before(box);
}
