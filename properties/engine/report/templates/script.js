"use strict";
const said = document.getElementById("said");

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const line = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(line.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(line);
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    said.textContent = "The replay line is " + button.textContent;
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
}

const choices = ["auto", "light", "dark"];
const theme = document.getElementById("theme");
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const now = choices.find((name) => root.classList.contains(name)) ?? "auto";
  const next = choices[(choices.indexOf(now) + 1) % choices.length];
  root.classList.remove(...choices);
  if (next !== "auto") root.classList.add(next);
  theme.textContent = "theme: " + next;
});

// A link to a finding unfolds it.
function unfold() {
  const found = document.getElementById(location.hash.slice(1));
  for (let at = found; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (found) found.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
