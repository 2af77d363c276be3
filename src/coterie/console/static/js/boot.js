// Before anything is painted: the theme that was chosen here. It is no module, so that nothing flashes.
try {
  const chosen = localStorage.getItem("coterie-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing follows the system.
}
