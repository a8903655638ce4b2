// The map: the head in the middle, every node as far from it as its round trip is long, the paths between.

import { h, s, setAttribute, setText, isSilent, pathText, roundTripText, WORDS } from "./dom.js";

const RINGS_MS = [0.1, 1, 3, 10, 30, 100, 300, 1000];
const MOST_LABELS = 28;
const MOST_CAREFUL = 40; // nodes whose labels look around for a place where they hide little; of more, beside the dot or nowhere
const MOST_TRIED = 120;
const WEDGE = (52 / 180) * Math.PI; // below the head nobody is: there the rings have their figures
const SIDES = [...Array(16).keys()].map((step) => [Math.cos((step * Math.PI) / 8), Math.sin((step * Math.PI) / 8)]);
const FURTHER = [0, 12, 26, 42, 60, 80, 105, 135, 170]; // pixels; with a line to the dot where that is not beside it
const NEAR = 14;
const STAYS = 6; // so much worse may a place have become before a label leaves it

export class NodeMap {
  constructor(box, onSelect) {
    this.box = box;
    this.onSelect = onSelect;
    this.nodes = new Map(); // by id: its elements
    this.selected = null;
    this.state = null;
    this.svg = s("svg", { role: "img", "aria-label": "Map of the nodes" });
    this.rings = s("g", { class: "rings" });
    this.links = s("g", { class: "links" });
    this.calm = s("g");
    this.others = s("g"); // above those that work
    this.dots = s("g", { class: "dots" }, this.calm, this.others);
    this.figures = s("g", { class: "figures-of-rings" });
    this.leaders = s("g", { class: "leaders" });
    this.labels = s("g", { class: "labels" });
    this.svg.append(this.rings, this.links, this.dots, this.figures, this.leaders, this.labels);
    this.tip = h("div", { class: "tip", hidden: true });
    box.append(this.svg, this.tip);
    this.svg.addEventListener("click", (event) => {
      const id = idAt(event);
      if (id) this.onSelect(id);
    });
    this.svg.addEventListener("pointermove", (event) => this.hover(idAt(event)));
    this.svg.addEventListener("pointerleave", () => this.hover(null));
    new ResizeObserver(() => this.resize()).observe(box);
    this.resize();
  }

  resize() {
    const { width, height } = this.box.getBoundingClientRect();
    if (width < 160 || height < 160 || (width === this.width && height === this.height)) return;
    Object.assign(this, { width, height });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.center = { x: width / 2, y: height / 2 };
    const room = 34; // for labels and the rim
    this.radius = { x: width / 2 - room - Math.max(0, Math.min(70, (width - 400) * 0.2)), y: height / 2 - room };
    this.inner = Math.min(this.radius.x, this.radius.y) * 0.17;
    for (const found of this.nodes.values()) found.side = null;
    if (this.state) this.place();
  }

  // From the ring below the nearest node to the one beyond the farthest: steps, so that a slow answer moves few.
  scale() {
    const rtts = Object.values(this.state.measures).map((each) => each.rtt_ms).filter((rtt) => rtt !== null);
    const near = RINGS_MS.findLast((rtt) => rtt < Math.min(...rtts, 10)) ?? RINGS_MS[0];
    const far = RINGS_MS.find((rtt) => rtt >= Math.max(...rtts, 30)) ?? RINGS_MS.at(-1);
    const key = [near, far, this.width, this.height].join();
    if (key === this.scaleKey) return;
    Object.assign(this, { near, far, scaleKey: key });
    const { x, y } = this.center;
    const rings = RINGS_MS.filter((rtt) => rtt > near && rtt <= far).map((rtt) => ({ text: `${rtt} ms`, rx: this.scaled(this.share(rtt), "x"), ry: this.scaled(this.share(rtt), "y") }));
    this.rings.replaceChildren(...rings.map(({ rx, ry }) => s("ellipse", { cx: x, cy: y, rx, ry })));
    this.figures.replaceChildren(...rings.map(({ text, ry }) => s("text", { x, y: y + ry + 4, "text-anchor": "middle" }, text)));
    this.ringBoxes = rings.map(({ text, ry }) => boxAround(x, y + ry, text.length * 3.2 + 3, 7));
  }

  share(rtt) {
    const clipped = Math.min(Math.max(rtt, this.near), this.far);
    return Math.log(clipped / this.near) / Math.log(this.far / this.near);
  }

  scaled(share, axis) {
    return this.inner + share * (this.radius[axis] - this.inner);
  }

  draw(state, changed) {
    this.state = state;
    if (changed.has("nodes")) this.update(changed.has("all"));
    if (changed.has("nodes") || changed.has("measures")) this.place();
  }

  update(isFirst) {
    const { nodes, head } = this.state;
    for (const [id, found] of this.nodes) {
      if (nodes[id]) continue;
      for (const element of [found.dot, found.link, found.label, found.leader]) element?.remove();
      this.nodes.delete(id);
    }
    for (const node of Object.values(nodes)) {
      let found = this.nodes.get(node.node_id);
      if (!found) {
        found = this.make(node.node_id);
        this.nodes.set(node.node_id, found);
      }
      const kind = node.node_id === head.node_id ? "head" : node.is_relay ? "relay" : "edge";
      setAttribute(found.dot, "class", `node ${kind} ${node.health}${node.node_id === this.selected ? " selected" : ""}`);
      if (node.health !== "ok") addHalo(found.dot);
      const layer = kind === "edge" && node.health === "ok" && node.node_id !== this.selected ? this.calm : this.others;
      if (found.dot.parentNode !== layer) layer.append(found.dot);
      if (!isFirst && found.health && found.health !== node.health) pulse(found.dot);
      found.health = node.health;
      setAttribute(found.link, "class", `link ${node.path ?? "none"} ${node.health}`);
    }
    this.order();
  }

  make(id) {
    const dot = s("g", { class: "node", "data-id": id }, s("circle", { class: "area", r: 12 }), s("circle", { class: "core", r: 5 }));
    const link = s("path", { class: "link" });
    this.links.append(link);
    return { dot, link };
  }

  // Most of many nodes never need one.
  label(found) {
    if (!found.label) {
      found.label = s("g", { class: "label" }, s("rect", { class: "back", rx: 4 }), s("text", { class: "name" }), s("text", { class: "figure" }));
      found.leader = s("path", { class: "leader" });
      this.leaders.append(found.leader);
      this.labels.append(found.label);
    }
    return found.label;
  }

  // Angles: by rank, so that nobody moves when a path changes; the relays apart from each other; nobody straight down.
  order() {
    const { nodes, head } = this.state;
    const others = Object.values(nodes).filter((node) => node.node_id !== head.node_id);
    const relays = others.filter((node) => node.is_relay);
    const edges = others.filter((node) => !node.is_relay);
    edges.sort((a, b) => (a.node_rank ?? 1e9) - (b.node_rank ?? 1e9) || (a.hostname < b.hostname ? -1 : 1));
    const ring = [...edges];
    relays.forEach((relay, index) => ring.splice(Math.round((index * ring.length) / relays.length), 0, relay));
    ring.forEach((node, index) => {
      const turned = (index / ring.length) * (2 * Math.PI - WEDGE);
      this.nodes.get(node.node_id).angle = turned + (turned > Math.PI - WEDGE / 2 ? WEDGE : 0) - Math.PI / 2;
    });
    this.svg.setAttribute("aria-label", `Map: the head ${head.hostname}, ${relays.length} relays, ${edges.length} other nodes. The list of nodes has the same in words.`);
  }

  place() {
    if (!this.center) return;
    this.scale();
    const { nodes, measures, head } = this.state;
    const relays = new Map();
    for (const node of Object.values(nodes)) {
      const found = this.nodes.get(node.node_id);
      Object.assign(found, node.node_id === head.node_id ? this.center : this.spot(found.angle, node, measures[node.node_id]));
      if (node.is_relay) relays.set(node.hostname, found);
      setAttribute(found.dot, "transform", `translate(${found.x.toFixed(1)} ${found.y.toFixed(1)})`);
    }
    for (const node of Object.values(nodes)) {
      const found = this.nodes.get(node.node_id);
      const from = node.path === "relayed" ? (relays.get(node.via) ?? this.center) : this.center;
      const isReached = node.path !== null || (measures[node.node_id]?.rtt_ms ?? null) !== null;
      const has = node.node_id !== head.node_id && isReached;
      setAttribute(found.link, "d", has ? line(from, found, node.path === "relayed", this.center) : "");
    }
    this.svg.classList.toggle("many", this.nodes.size > MOST_LABELS);
    this.placeLabels();
    if (this.hovered) this.hover(this.hovered);
  }

  spot(angle, node, measure) {
    const isUnknown = (measure?.rtt_ms ?? null) === null;
    const isGone = isUnknown && (node.health === "away" || isSilent(measure));
    const share = isGone ? 1.07 : isUnknown ? 0.5 : this.share(measure.rtt_ms);
    return {
      x: this.center.x + this.scaled(share, "x") * Math.cos(angle),
      y: this.center.y + this.scaled(share, "y") * Math.sin(angle),
    };
  }

  // Few nodes: all have labels. Many: those that need attention, as far as there is room, and what they hide is calm.
  placeLabels() {
    const { nodes, measures, head } = this.state;
    const isMany = this.nodes.size > MOST_LABELS;
    const all = Object.values(nodes).sort((a, b) => rank(a, head, this.selected) - rank(b, head, this.selected));
    const isCalm = (node) => isMany && node.health === "ok" && !node.is_relay && node.node_id !== head.node_id && node.node_id !== this.selected;
    const wanted = all.filter((node) => !isCalm(node));
    const dotBox = (node) => {
      const { x, y } = this.nodes.get(node.node_id);
      const half = node.node_id === head.node_id ? 14 : node.is_relay || node.health !== "ok" ? 10 : isMany ? 4 : 7;
      return { id: node.node_id, ...boxAround(x, y, half, half) };
    };
    const isCareful = wanted.length <= MOST_CAREFUL;
    const every = Math.ceil(wanted.length / MOST_TRIED);
    const tried = new Set(wanted.filter((_, index) => index < MOST_CAREFUL || index % every === 0));
    const taken = [...this.ringBoxes, ...wanted.map(dotBox)];
    const around = { taken, calm: isCareful ? all.filter(isCalm).map(dotBox) : [], distances: isCareful ? FURTHER : FURTHER.slice(0, 2) };
    for (const node of all) {
      const found = this.nodes.get(node.node_id);
      const box = !tried.has(node) ? null : this.labelBox(node, found, measures[node.node_id], around);
      if (found.label || box) setAttribute(this.label(found), "visibility", box ? "visible" : "hidden");
      found.side = box?.side;
      if (found.leader) setAttribute(found.leader, "d", box && box.side.further > NEAR ? straight(found, nearest(found, box)) : "");
      if (!box) continue;
      taken.push(box);
      this.drawLabel(found, node.hostname, box);
    }
  }

  drawLabel(found, hostname, box) {
    const [back, name, figure] = found.label.children;
    for (const [key, value] of [["x", box.x], ["y", box.y], ["width", box.right - box.x], ["height", box.bottom - box.y]]) setAttribute(back, key, value.toFixed(1));
    setText(name, hostname);
    setText(figure, box.figure);
    const at = [box.right - 3, (box.x + box.right) / 2, box.x + 3][box.across + 1];
    for (const [text, offset] of [[name, 12], [figure, 26]]) {
      setAttribute(text, "x", at.toFixed(1));
      setAttribute(text, "y", (box.y + offset).toFixed(1));
      setAttribute(text, "text-anchor", ["end", "middle", "start"][box.across + 1]);
    }
  }

  // Where a node's label is: beside its dot, away from the middle, where the lines come from; else around it or
  // further off, where it hides nothing that needs attention. Null where it is to be nowhere.
  labelBox(node, found, measure, { taken, calm, distances }) {
    const isHead = node.node_id === this.state.head.node_id;
    const figure = isHead ? "" : roundTripText(measure) || (node.health === "ok" ? "" : WORDS[node.health]);
    const wide = Math.max(this.widthOf(node.hostname, "name"), this.widthOf(figure, "figure")) + 6;
    const tall = figure ? 31 : 16;
    const labels = taken.filter((other) => other.side);
    const out = isHead ? { x: 0, y: 1 } : { x: (found.x - this.center.x) / this.radius.x, y: (found.y - this.center.y) / this.radius.y };
    const long = Math.hypot(out.x, out.y) || 1;
    const gap = isHead ? 15 : node.is_relay || node.health !== "ok" ? 12 : 9;
    const boxAt = (index, further) => {
      const [dx, dy] = SIDES[index];
      const [across, down] = [third(dx), third(dy)];
      const x = found.x + dx * (gap + further) - ((1 - across) / 2) * wide;
      const y = found.y + dy * (gap + further) - ((1 - down) / 2) * tall;
      const box = { x, y, right: x + wide, bottom: y + tall };
      if (x < 1 || y < 1 || box.right > this.width - 1 || box.bottom > this.height - 1) return null;
      if (taken.some((other) => other.id !== node.node_id && overlap(box, other))) return null;
      return { ...box, figure, across, side: { index, further } };
    };
    const before = found.side;
    if (before?.further === 0) { // where it is well it stays
      const box = boxAt(before.index, 0);
      if (box) return box;
    }
    let best = null;
    for (const [index, [dx, dy]] of SIDES.entries()) {
      const turned = (dx * out.x + dy * out.y) / long;
      for (const further of distances) {
        const cost = (1 - turned) * 14 + (index % 4 ? 3 : 0) + further * 0.4 + (further > NEAR ? 6 : 0);
        if (best && cost - STAYS >= best.cost) break;
        const box = boxAt(index, further);
        if (!box) continue;
        const hidden = calm.filter((other) => overlap(box, other)).length;
        const crossed = further > NEAR ? labels.filter((other) => crosses(found, box, other)).length : 0;
        const isBefore = before?.index === index && before.further === further;
        const whole = cost + 3 * hidden + 12 * crossed - (isBefore ? STAYS : 0);
        if (!best || whole < best.cost) best = { ...box, cost: whole };
      }
    }
    return best;
  }

  // In pixels, as the browser draws it.
  widthOf(text, kind) {
    this.widths ??= new Map();
    const key = `${kind} ${text}`;
    if (!this.widths.has(key)) {
      this.pen ??= document.createElement("canvas").getContext("2d");
      this.pen.font = `${kind === "name" ? "550 12.5px" : "400 11.5px"} ${getComputedStyle(this.svg).fontFamily}`;
      if (this.widths.size > 5000) this.widths.clear();
      this.widths.set(key, this.pen.measureText(text).width);
    }
    return this.widths.get(key);
  }

  select(id) {
    this.nodes.get(this.selected)?.dot.classList.remove("selected");
    this.selected = id;
    const found = this.nodes.get(id);
    if (found) {
      addHalo(found.dot);
      found.dot.classList.add("selected");
      this.others.append(found.dot);
    }
    if (this.state) this.placeLabels();
  }

  hover(id) {
    this.hovered = id;
    const node = id && this.state?.nodes[id];
    this.tip.hidden = !node;
    if (!node) return;
    const measure = this.state.measures[id];
    const found = this.nodes.get(id);
    this.tip.replaceChildren(
      h("strong", {}, node.hostname),
      h("span", {}, [pathText(node), roundTripText(measure)].filter(Boolean).join(" · ")),
      h("span", {}, node.wrong[0] ?? node.brief),
    );
    const { width } = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.min(Math.max(found.x - width / 2, 4), this.width - width - 4)}px`;
    const isLow = found.y > this.height / 2;
    this.tip.style.top = isLow ? "auto" : `${found.y + 16}px`;
    this.tip.style.bottom = isLow ? `${this.height - found.y + 16}px` : "auto";
  }
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const nearest = (dot, box) => ({ x: clamp(dot.x, box.x, box.right), y: clamp(dot.y, box.y, box.bottom) });
const boxAround = (x, y, wide, tall) => ({ x: x - wide, y: y - tall, right: x + wide, bottom: y + tall });
const third = (part) => (part > 0.5 ? 1 : part < -0.5 ? -1 : 0);
const overlap = (a, b) => a.x < b.right && b.x < a.right && a.y < b.bottom && b.y < a.bottom;

const idAt = (event) => event.target.closest?.("[data-id]")?.dataset.id ?? null;

function rank(node, head, selected) {
  if (node.node_id === selected) return -2;
  if (node.node_id === head.node_id) return -1;
  return { trouble: 0, paused: 0, warning: 1, away: 2, coming: 2, off: 3, ok: node.is_relay ? 1.5 : 3 }[node.health];
}

const straight = (from, to) => `M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${to.x.toFixed(1)} ${to.y.toFixed(1)}`;

function line(from, to, isRelayed, center) {
  if (!isRelayed) return straight(from, to);
  const start = `M${from.x.toFixed(1)} ${from.y.toFixed(1)}`;
  const bend = { x: (from.x + to.x) / 2 * 0.75 + center.x * 0.25, y: (from.y + to.y) / 2 * 0.75 + center.y * 0.25 };
  return `${start}Q${bend.x.toFixed(1)} ${bend.y.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}

// Whether the line from a dot to its label's box goes through another box.
function crosses(dot, box, other) {
  const end = nearest(dot, box);
  let [first, last] = [0, 1];
  for (const [axis, low, high] of [["x", other.x, other.right], ["y", other.y, other.bottom]]) {
    const length = end[axis] - dot[axis];
    if (length === 0) {
      if (dot[axis] < low || dot[axis] > high) return false;
      continue;
    }
    const at = [(low - dot[axis]) / length, (high - dot[axis]) / length];
    first = Math.max(first, Math.min(...at));
    last = Math.min(last, Math.max(...at));
  }
  return first < last;
}

function addHalo(dot) {
  if (dot.childElementCount === 2) dot.children[0].after(s("circle", { class: "halo", r: 9 }));
}

function pulse(dot) {
  addHalo(dot);
  dot.classList.remove("pulse");
  void dot.getBoundingClientRect();
  dot.classList.add("pulse");
}
