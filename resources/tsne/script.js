"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.querySelector("#plane > canvas");
if (canvas) start(); else document.body.dataset.points = "0";

function start() {
  const named = data.names.length <= data.colours.length;
  const colour = (k) => named ? data.colours[k]
    : `hsl(${(k * 137.508) % 360} 65% ${38 + 8 * (k % 3)}%)`;
  const mark = (context, k, x, y, size) => {
    context.fillStyle = colour(k);
    context.beginPath();
    if (named && k >= data.circles) {
      context.moveTo(x, y - 1.3 * size);
      context.lineTo(x + 1.2 * size, y + 0.8 * size);
      context.lineTo(x - 1.2 * size, y + 0.8 * size);
    } else context.arc(x, y, size, 0, 2 * Math.PI);
    context.fill();
  };
  const [tip, words] = ["tip", "words"].map((id) => document.getElementById(id));
  const hidden = new Set();
  const count = data.x.length;
  // Drawn in a shuffled order, so that no class lies on top of the others.
  const order = [...data.x.keys()];
  for (let i = count - 1, seed = 1; i > 0; i--) {
    seed = (seed * 16807) % 2147483647;
    const j = seed % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  const bounds = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [left, right] = bounds(data.x), [bottom, top] = bounds(data.y);
  let view, width, height;
  const reset = () => { view = { x: (left + right) / 2, y: (bottom + top) / 2, zoom: 1 }; draw(); };
  const scale = () => view.zoom * 0.94 * Math.min(width / ((right - left) || 1), height / ((top - bottom) || 1));
  const place = (i) => [width / 2 + (data.x[i] - view.x) * scale(), height / 2 - (data.y[i] - view.y) * scale()];

  function draw() {
    const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.scale(ratio, ratio);
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, width, height);
    const size = Math.min(6, Math.max(1.6, Math.sqrt(9000 / count) / 2.2) * Math.sqrt(view.zoom));
    let shown = 0;
    for (const i of order) {
      if (hidden.has(data.label[i])) continue;
      shown++;
      const [x, y] = place(i);
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
      context.globalAlpha = 0.8;
      mark(context, data.label[i], x, y, size);
      context.globalAlpha = 1;
    }
    document.body.dataset.points = shown;
  }

  function nearest(x, y) {
    let best = -1, least = 144;
    for (let i = 0; i < count; i++) {
      if (hidden.has(data.label[i])) continue;
      const [a, b] = place(i), distance = (a - x) ** 2 + (b - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  function explain(x, y) {
    const i = nearest(x, y);
    tip.hidden = i < 0;
    if (i < 0) return;
    words.textContent = data.names[data.label[i]];
    const [a, b] = place(i);
    tip.style.left = `${Math.min(a + 12, Math.max(0, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(0, Math.min(b + 12, height - tip.offsetHeight - 4))}px`;
  }

  function zoom(factor, x = width / 2, y = height / 2) {
    const before = scale();
    view.zoom = Math.min(200, Math.max(0.5, view.zoom * factor));
    const change = 1 / before - 1 / scale();
    view.x += (x - width / 2) * change;
    view.y -= (y - height / 2) * change;
    draw();
  }
  const move = (dx, dy) => { view.x -= dx / scale(); view.y += dy / scale(); draw(); };

  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = [event.offsetX, event.offsetY]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return explain(event.offsetX, event.offsetY);
    tip.hidden = true;
    move(event.offsetX - held[0], event.offsetY - held[1]);
    held = [event.offsetX, event.offsetY];
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("dblclick", reset);
  canvas.addEventListener("keydown", (event) => {
    const act = { "+": () => zoom(1.2), "-": () => zoom(1 / 1.2), "0": reset, ArrowLeft: () => move(40, 0),
      ArrowRight: () => move(-40, 0), ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  const legend = document.getElementById("legend"), boxes = [];
  const present = new Set(data.label);
  data.names.forEach((name, k) => {
    if (!present.has(k)) return;
    const [label, box, dot] = ["label", "input", "canvas"].map((tag) => document.createElement(tag));
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { hidden[box.checked ? "delete" : "add"](k); draw(); });
    dot.width = dot.height = 12;
    mark(dot.getContext("2d"), k, 6, 6, 4.5);
    label.append(box, dot, String(name));
    legend.append(label);
    boxes.push([box, k]);
  });
  const set = (checked) => {
    for (const [box, k] of boxes) { box.checked = checked; hidden[checked ? "delete" : "add"](k); }
    draw();
  };
  document.getElementById("all").addEventListener("click", () => set(true));
  document.getElementById("none").addEventListener("click", () => set(false));
  document.getElementById("reset").addEventListener("click", reset);
  const fit = () => { width = canvas.clientWidth; height = canvas.clientHeight; if (view) draw(); else reset(); };
  new ResizeObserver(fit).observe(canvas);
  fit();
}
