"""What each runtime takes and computes: profiles of rules, engines that judge, comparisons."""
