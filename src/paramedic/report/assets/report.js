"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const button = (label, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.addEventListener("click", () => action(made));
    return made;
  };

  const copy = (node, made) => {
    const text = "value" in node ? node.value : node.textContent;
    const told = (word) => {
      const label = made.dataset.label || made.textContent;
      made.dataset.label = label;
      made.textContent = word;
      setTimeout(() => { made.textContent = label; }, 1600);
    };
    const byHand = () => {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      told(done ? "Copied" : "Press Ctrl+C");
    };
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(text).then(() => told("Copied"), byHand);
    } else {
      byHand();
    }
  };

  for (const holder of document.querySelectorAll("[data-copy]")) {
    const made = button(holder.dataset.copy, (self) => copy(holder.querySelector("pre, textarea"), self));
    made.className = "copy";
    holder.append(made);
  }

  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggle = button(dark() ? "Light" : "Dark", (self) => {
    root.dataset.theme = dark() ? "light" : "dark";
    self.textContent = dark() ? "Light" : "Dark";
  });
  toggle.className = "theme";
  toggle.setAttribute("aria-label", "Switch between light and dark");
  document.querySelector(".bar").append(toggle);

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open]):not(.noprint)")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
