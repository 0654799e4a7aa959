// The menu begins where its current entry is in view.
addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector(".sidebar-scroll");
  const entry = box?.querySelector(".current-page");
  if (!entry) return;
  const below = entry.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom;
  if (below > 0) box.scrollBy({ top: below + box.clientHeight / 2, behavior: "instant" });
});
