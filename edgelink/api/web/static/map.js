// The map: the head in the middle, every node as far from it as its round trip is long, the paths between.

import { h, s, setAttribute, setText, rttText, lossText, pathText, WORDS } from "./dom.js";

const RINGS_MS = [0.1, 1, 3, 10, 30, 100, 300, 1000];
const MOST_LABELS = 28;
const LABEL_GAP = 15;

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
    this.dots = s("g", { class: "dots" });
    this.labels = s("g", { class: "labels" });
    this.svg.append(this.rings, this.links, this.dots, this.labels);
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
    this.rings.replaceChildren(
      ...RINGS_MS.filter((rtt) => rtt > near && rtt <= far).map((rtt) => {
        const share = this.share(rtt);
        const { x, y } = this.center;
        const ry = this.scaled(share, "y");
        return s("g", {},
          s("ellipse", { cx: x, cy: y, rx: this.scaled(share, "x"), ry }),
          s("text", { x, y: y + ry - 4, "text-anchor": "middle" }, `${rtt} ms`));
      }),
    );
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
      for (const element of [found.dot, found.link, found.label]) element?.remove();
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
    this.dots.append(dot);
    return { dot, link };
  }

  // Most of many nodes never need one.
  label(found) {
    if (!found.label) {
      found.label = s("g", { class: "label" }, s("text", { class: "name" }), s("text", { class: "figure" }));
      this.labels.append(found.label);
    }
    return found.label;
  }

  // Angles: by rank, so that nobody moves when a path changes; the relays apart from each other.
  order() {
    const { nodes, head } = this.state;
    const others = Object.values(nodes).filter((node) => node.node_id !== head.node_id);
    const relays = others.filter((node) => node.is_relay);
    const edges = others.filter((node) => !node.is_relay);
    edges.sort((a, b) => (a.node_rank ?? 1e9) - (b.node_rank ?? 1e9) || (a.hostname < b.hostname ? -1 : 1));
    const ring = [...edges];
    relays.forEach((relay, index) => ring.splice(Math.round((index * ring.length) / relays.length), 0, relay));
    ring.forEach((node, index) => {
      this.nodes.get(node.node_id).angle = (index / ring.length) * 2 * Math.PI - Math.PI / 2;
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
    const isSilent = measure?.rtt_ms === null || measure?.rtt_ms === undefined;
    const isGone = isSilent && (node.health === "away" || (measure?.loss ?? 0) > 0);
    const share = isGone ? 1.07 : isSilent ? 0.5 : this.share(measure.rtt_ms);
    return {
      x: this.center.x + this.scaled(share, "x") * Math.cos(angle),
      y: this.center.y + this.scaled(share, "y") * Math.sin(angle),
    };
  }

  // Few nodes: all have labels. Many: those that need attention, as far as there is room.
  placeLabels() {
    const { nodes, measures, head } = this.state;
    const isMany = this.nodes.size > MOST_LABELS;
    const taken = [];
    const wanted = Object.values(nodes).sort((a, b) => rank(a, head, this.selected) - rank(b, head, this.selected));
    for (const node of wanted) {
      const found = this.nodes.get(node.node_id);
      const isCalm = isMany && node.health === "ok" && !node.is_relay && node.node_id !== head.node_id && node.node_id !== this.selected;
      const box = isCalm ? null : this.labelBox(node, found, measures[node.node_id], head);
      const isShown = box && !taken.some((other) => box.x < other.right && other.x < box.right && box.y < other.bottom && other.y < box.bottom);
      if (found.label || isShown) setAttribute(this.label(found), "visibility", isShown ? "visible" : "hidden");
      if (!isShown) continue;
      taken.push(box);
      const [name, figure] = found.label.children;
      setText(name, node.hostname);
      setText(figure, box.figure);
      for (const [text, offset] of [[name, 12], [figure, 26]]) {
        setAttribute(text, "x", box.at.toFixed(1));
        setAttribute(text, "y", (box.y + offset).toFixed(1));
        setAttribute(text, "text-anchor", box.anchor);
      }
    }
  }

  // Away from the middle, where the lines come from.
  labelBox(node, found, measure, head) {
    const isHead = node.node_id === head.node_id;
    const figure = isHead ? "" : [rttText(measure?.rtt_ms), lossText(measure?.loss)].filter(Boolean).join(", ") || (node.health === "ok" ? "" : WORDS[node.health]);
    const long = Math.max(node.hostname.length * 7.2, figure.length * 6.2) + 6;
    const tall = figure ? 31 : 16;
    const across = (found.x - this.center.x) / this.radius.x;
    const down = found.y - this.center.y;
    const hasRoom = down < 0 ? found.y - 12 - tall > 0 : found.y + 12 + tall < this.height;
    const isMiddle = isHead || (Math.abs(across) < 0.16 && hasRoom);
    let x = isMiddle ? found.x - long / 2 : across > 0 ? found.x + 13 : found.x - 13 - long;
    x = Math.min(Math.max(x, 2), this.width - long - 2);
    let y = found.y - tall / 2;
    if (isMiddle) y = isHead ? found.y + 15 : down < 0 ? found.y - 12 - tall : found.y + 12;
    y = Math.min(Math.max(y, 1), this.height - tall - 1);
    const anchor = isMiddle ? "middle" : across > 0 ? "start" : "end";
    const at = isMiddle ? x + long / 2 : across > 0 ? x : x + long;
    return { x, y, right: x + long, bottom: y + tall, figure, anchor, at };
  }

  select(id) {
    this.nodes.get(this.selected)?.dot.classList.remove("selected");
    this.selected = id;
    const found = this.nodes.get(id);
    if (found) {
      addHalo(found.dot);
      found.dot.classList.add("selected");
      this.dots.append(found.dot);
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
      h("span", {}, [pathText(node), rttText(measure?.rtt_ms), lossText(measure?.loss)].filter(Boolean).join(" · ")),
      h("span", {}, node.wrong[0] ?? node.brief),
    );
    const { width } = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.min(Math.max(found.x - width / 2, 4), this.width - width - 4)}px`;
    const isLow = found.y > this.height / 2;
    this.tip.style.top = isLow ? "auto" : `${found.y + 16}px`;
    this.tip.style.bottom = isLow ? `${this.height - found.y + 16}px` : "auto";
  }
}

const idAt = (event) => event.target.closest?.("[data-id]")?.dataset.id ?? null;

function rank(node, head, selected) {
  if (node.node_id === selected) return -2;
  if (node.node_id === head.node_id) return -1;
  return { trouble: 0, away: 1, warning: 2, ok: node.is_relay ? 1.5 : 3 }[node.health];
}

function line(from, to, isRelayed, center) {
  const start = `M${from.x.toFixed(1)} ${from.y.toFixed(1)}`;
  if (!isRelayed) return `${start}L${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
  const bend = { x: (from.x + to.x) / 2 * 0.75 + center.x * 0.25, y: (from.y + to.y) / 2 * 0.75 + center.y * 0.25 };
  return `${start}Q${bend.x.toFixed(1)} ${bend.y.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
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
