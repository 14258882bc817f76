// Before anything is drawn: the colours that were chosen here, if any were. Else those of the system.
try {
  const theme = localStorage.getItem("backplane-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing.
}
