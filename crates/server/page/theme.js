// Light or dark as was chosen, before anything is drawn.
try {
  document.documentElement.dataset.theme = localStorage.getItem("forerun.theme") ?? "auto";
} catch {
  // Nothing is kept here: as the system is.
}
