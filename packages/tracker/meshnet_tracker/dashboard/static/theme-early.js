// Runs before the first paint, so that a chosen theme does not flash in the other one first.
const stored = localStorage.getItem("meshnet-theme");
if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
