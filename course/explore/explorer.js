// The browser's half of explorer.py: the picture, its caption, what the controls around it lack.

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
    const box = el.closest(".course-explorer");
    const ends = [serveControls(box), hideStill(el), followScreen(model), followKernel(model, box)];
    return () => ends.forEach((end) => end());
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

// In JupyterLab still.css hides the stored picture above a live one. Elsewhere, VS Code for one,
// there are no class names to go by.
function hideStill(el) {
  if (el.closest(".jp-OutputArea")) return () => {};
  const before = (still) => still.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING;
  const still = [...document.querySelectorAll(".course-explorer-still")].filter(before).at(-1);
  still?.style.setProperty("display", "none");
  return () => still?.style.removeProperty("display");
}

// The picture is drawn with as many pixels as the screen shows: more on a sharp one, or zoomed in.
function followScreen(model) {
  let now;
  const tell = () => {
    now = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    now.addEventListener("change", tell, { once: true });
    model.set("ratio", devicePixelRatio);
    model.save_changes();
  };
  tell();
  return () => now.removeEventListener("change", tell);
}

// A widget outlives its kernel: its controls move on, its picture stands still. JupyterLab marks
// the widgets of a kernel that the reader restarts; this marks those of one that died or was shut
// down. still.css hides what is so marked and shows the stored picture, which says what to do.
function followKernel(model, box) {
  const kernel = model.widget_manager?.kernel; // as in JupyterLab and Notebook 7
  if (!box || !kernel?.statusChanged) return () => {};
  const mark = () => box.classList.add("jupyter-widgets-disconnected");
  const look = (_kernel, status) => { if (/dead|restarting|terminating/.test(status)) mark(); };
  kernel.statusChanged.connect(look);
  kernel.disposed.connect(mark);
  return () => { kernel.statusChanged.disconnect(look); kernel.disposed.disconnect(mark); };
}

const KEYED = "[role=slider], select, button, input, [contenteditable]";

// JupyterLab takes the keys of whatever has the focus, unless that very element forbids it: ↓ on a
// drop-down would move to another cell, x would cut this one. And ipywidgets leaves slider handles
// and play buttons without a name, and speaks a slider's position where its value is meant (the
// exponent of a log slider, the index of an option).
function serveControls(box) {
  if (!box) return () => {};
  const set = (node, name, value) => { if (node.getAttribute(name) !== value) node.setAttribute(name, value); };
  const serve = () => {
    for (const control of box.querySelectorAll(KEYED)) set(control, "data-lm-suppress-shortcuts", "true");
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
  const changes = new MutationObserver(serve); // also of controls that come later
  changes.observe(box, {
    childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["aria-valuetext"],
  });
  serve();
  return () => changes.disconnect();
}

export default { render };
