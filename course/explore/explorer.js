// The browser's half of explorer.py: the picture, its caption, names for the controls around it.

function render({ model, el }) {
  const image = document.createElement("img");
  image.alt = model.get("title");
  image.width = model.get("width");
  const caption = document.createElement("figcaption");
  caption.id = "course-explorer-" + crypto.getRandomValues(new Uint32Array(1))[0];
  image.setAttribute("aria-describedby", caption.id);
  const spoken = document.createElement("div"); // a screen reader reads out what changes in here
  spoken.className = "course-explorer-spoken";
  spoken.setAttribute("role", "status");
  const figure = document.createElement("figure");
  figure.className = "course-explorer-live";
  figure.append(image, caption, spoken);
  el.append(figure);

  const showPicture = () => {
    const old = image.src; // stays on the screen until the new one is decoded: no flicker
    image.src = URL.createObjectURL(new Blob([model.get("png")], { type: "image/png" }));
    if (old) image.decode().catch(() => {}).then(() => URL.revokeObjectURL(old));
  };
  const words = () => model.get("error") || model.get("caption");
  const showWords = () => {
    caption.textContent = words();
    figure.classList.toggle("course-explorer-failed", model.get("error") !== "");
  };
  let rest;
  const speak = () => { // once the control rests, not at every step
    clearTimeout(rest);
    rest = setTimeout(() => { spoken.textContent = words(); }, 400);
  };
  showPicture();
  showWords();
  model.on("change:png", showPicture);
  model.on("change:caption change:error", showWords);
  model.on("change:caption change:error", speak);

  const detach = whenAttached(el, () => {
    const stopNaming = nameControls(el.closest(".course-explorer"));
    const showStill = hideStill(el);
    return () => { stopNaming(); showStill(); };
  });
  return () => {
    model.off(null, showPicture);
    model.off(null, showWords);
    model.off(null, speak);
    clearTimeout(rest);
    detach();
    URL.revokeObjectURL(image.src);
  };
}

// Calls start() when el has come onto the page; returns the function that ends what start() began.
function whenAttached(el, start) {
  let stop;
  const seen = new ResizeObserver(() => { if (!stop && el.isConnected) stop = start(); });
  seen.observe(el);
  return () => { seen.disconnect(); stop?.(); };
}

// In JupyterLab explorer.css hides the stored picture above a live one. Elsewhere, VS Code for one,
// there are no class names to go by.
function hideStill(el) {
  if (el.closest(".jp-OutputArea")) return () => {};
  const before = (still) => still.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING;
  const still = [...document.querySelectorAll(".course-explorer-still")].filter(before).at(-1);
  still?.style.setProperty("display", "none");
  return () => still?.style.removeProperty("display");
}

// ipywidgets leaves slider handles and play buttons without a name, and speaks a slider's position
// where its value is meant (the exponent of a log slider, the index of an option).
function nameControls(box) {
  if (!box) return () => {};
  const set = (node, name, value) => { if (node.getAttribute(name) !== value) node.setAttribute(name, value); };
  const name = () => {
    for (const slider of box.querySelectorAll(".widget-slider, .widget-hslider")) {
      const label = slider.querySelector(".widget-label")?.textContent;
      const value = slider.querySelector(".widget-readout")?.textContent;
      for (const handle of slider.querySelectorAll("[role=slider]")) {
        if (label) set(handle, "aria-label", label);
        if (value) set(handle, "aria-valuetext", value);
      }
    }
    for (const play of box.querySelectorAll(".widget-play")) {
      const label = play.parentElement.querySelector(".widget-label")?.textContent ?? "";
      ["play or pause", "back to the start"].forEach((does, i) => {
        set(play.children[i], "aria-label", `${label}: ${does}`);
        set(play.children[i], "title", does);
      });
    }
  };
  const changes = new MutationObserver(name);
  changes.observe(box, {
    childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["aria-valuetext"],
  });
  name();
  return () => changes.disconnect();
}

export default { render };
