// Training, placement, traffic, events.

import { byId, h, badge, prose, setText, agoText, bytesText, clockText, figureName, now, nowText, numberText, plural, spanText, timeElement, whenText } from "./dom.js";
import { drawChart } from "./charts.js";
import { leftSeconds, stepText } from "./summary.js";

const MOST_EVENTS = 120;
const MOST_LINKS = 8;
const MOST_MACHINES = 60;

export class Panels {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.metric = byId("metric");
    this.metric.addEventListener("change", () => {
      this.chosen = this.metric.value;
      this.drawCurve();
    });
    let waiting = null;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.state && (this.drawCurve(), this.drawTraffic()), 150);
    });
    setInterval(() => this.state && this.drawTimes(), 15000);
  }

  draw(state, changed) {
    this.state = state;
    if (changed.has("run")) this.drawRun();
    if (["points", "run", "outages"].some((each) => changed.has(each))) this.drawCurve();
    if (changed.has("nodes")) this.drawPlacement();
    if (changed.has("traffic") || changed.has("outages")) this.drawTraffic();
    if (changed.has("measures") || changed.has("nodes")) this.drawLinks();
    if (changed.has("events")) this.drawEvents(changed.has("all"));
    if (changed.has("events") || changed.has("outages")) this.markEvents();
  }

  // When a node was silent, or still is.
  outages() {
    return Object.values(this.state.outages).map(({ hostname, kind, since, until }) => {
      const [from, to] = [Date.parse(since), until === null ? now() : Date.parse(until)];
      return { hostname, kind, from, to, text: `${hostname} silent ${until === null ? "since " : ""}${until === null ? clockText(from) : `for ${spanText((to - from) / 1000)}`}` };
    });
  }

  drawRun() {
    const { run } = this.state;
    if (!run) {
      byId("run").replaceChildren(h("p", { class: "empty" }, "No run yet. ", h("code", {}, "edgelink run -- CMD"), " starts one."));
      return;
    }
    const last = run.attempts.at(-1);
    const step = run.step === null ? (last?.step ? `step ${last.step}` : "") : `step ${stepText(run.step)}${run.total_steps === null ? "" : ` of ${stepText(run.total_steps)}`}`;
    const seconds = run.in_progress ? leftSeconds(run) : null;
    const left = seconds === null ? "" : `about ${spanText(seconds)} left`;
    const number = last && last.number > 1 ? `attempt ${last.number}` : "";
    const isBad = !run.in_progress && last && last.exit_status !== 0;
    const how = run.in_progress ? "runs" : last?.exit_status === null || !last ? "ended" : last.exit_status === 0 ? "done" : `ended with status ${last.exit_status}`;
    const since = last ? (run.in_progress ? `started ${agoText(last.started_at)}` : last.ended_at ? agoText(last.ended_at) : "") : "";
    byId("run").replaceChildren(
      h("p", { class: "run" }, badge(run.in_progress ? "ok" : isBad ? "trouble" : "info"), h("strong", {}, run.command.split("/").at(-1)),
        h("span", { class: "muted" }, [how, step, left, number, since].filter(Boolean).join(" · "))),
      ...(run.in_progress && run.total_steps && run.step !== null ? [h("progress", { max: run.total_steps, value: Math.min(run.step, run.total_steps), "aria-label": "Steps that are done" })] : []),
      ...(isBad && last.what_followed ? [h("p", { class: "muted" }, last.what_followed)] : []),
    );
  }

  drawCurve() {
    const { run, points } = this.state;
    const names = run?.metric_names ?? [];
    const label = byId("metric-label");
    label.hidden = names.length < 2;
    if ([...this.metric.options].map((each) => each.value).join() !== names.join()) {
      this.metric.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    }
    const chosen = names.includes(this.chosen) ? this.chosen : figureName(names);
    if (chosen) this.metric.value = chosen;
    // Not every step has every figure: an update in which no episode ended has no return, and is no gap.
    const own = points.filter((point) => point.run_id === run?.run_id && chosen in point.values).map((point) => [Date.parse(point.at), point.values[chosen], `step ${stepText(point.step)}`]);
    const box = byId("curve");
    box.hidden = !run;
    if (!run) return;
    drawChart(box, [{ name: chosen ?? "", class: "first", points: own }], {
      xText: clockText,
      yText: numberText,
      isTime: true,
      bands: this.outages(),
      until: run.in_progress ? now() : undefined,
      label: `${chosen ?? "training curve"} by time, and when nodes were silent`,
      empty: "The driver has told no figures: it may write them to the file that EDGELINK_METRICS_FILE names.",
    });
  }

  drawPlacement() {
    const machines = Object.values(this.state.nodes).filter((node) => node.placed.length);
    machines.sort((a, b) => a.node_rank - b.node_rank);
    const key = JSON.stringify(machines.map((node) => [node.hostname, node.health, node.placed]));
    const box = byId("placement");
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    if (!machines.length) {
      box.replaceChildren(h("p", { class: "empty" }, "No run with a cluster file is in progress."));
      return;
    }
    const components = [...new Set(machines.flatMap((node) => node.placed.map((each) => each.component)))];
    const more = machines.length - MOST_MACHINES;
    box.replaceChildren(h("ul", { class: "machines" }, machines.slice(0, MOST_MACHINES).map((node) => h("li", {},
      h("button", { type: "button", onclick: () => this.onSelect(node.node_id) }, badge(node.health), h("strong", {}, node.hostname)),
      h("span", { class: "chips" }, node.placed.map((each) => h("span", { class: `chip c${components.indexOf(each.component) % 6}` },
        each.component, h("b", {}, ` × ${each.processes}`), each.accelerators.length ? h("span", { class: "muted" }, ` GPU ${spans(each.accelerators)}`) : null))))),
    more > 0 ? h("li", { class: "empty" }, `and ${plural(more, "machine")}`) : null));
  }

  drawTraffic() {
    const { traffic } = this.state;
    const of = (name) => traffic.map((sample) => [Date.parse(sample.at), 8 * sample[name]]);
    drawChart(byId("traffic"), [
      { name: "received", class: "in", points: of("received_bytes_per_s") },
      { name: "sent", class: "out", points: of("sent_bytes_per_s") },
    ], {
      xText: clockText,
      yText: (bits) => bytesText(bits, "bit/s"),
      isTime: true,
      bands: this.outages(),
      label: "What the overlay carries to and from the head, and when nodes were silent",
      fromZero: true,
      isArea: true,
      empty: "Not measured yet.",
    });
  }

  drawLinks() {
    const { nodes, measures } = this.state;
    const found = Object.values(nodes)
      .map((node) => ({ node, measure: measures[node.node_id] }))
      .filter(({ measure }) => measure?.received || measure?.sent)
      .map((each) => ({ ...each, size: sizeOf(each.measure.received) + sizeOf(each.measure.sent) }))
      .sort((a, b) => b.size - a.size);
    const key = JSON.stringify(found.slice(0, MOST_LINKS).map(({ node, measure }) => [node.hostname, measure.received, measure.sent, measure.received_now, measure.sent_now]));
    const box = byId("links");
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    if (!found.length) {
      box.replaceChildren();
      return;
    }
    const most = Math.max(...found.map((each) => each.size), 1);
    box.replaceChildren(h("table", { class: "links" },
      h("caption", {}, "By link: now, and in all since it was made"),
      h("thead", {}, h("tr", {}, ["To", "Received", "Sent"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, found.slice(0, MOST_LINKS).map(({ node, measure, size }) => h("tr", {},
        h("th", { scope: "row" }, node.hostname, h("meter", { min: 0, max: 1, value: size / most, "aria-label": `share of ${node.hostname}` })),
        carried(measure.received, measure.received_now), carried(measure.sent, measure.sent_now))))));
  }

  drawEvents(isFirst) {
    const found = this.state.events.slice(-MOST_EVENTS).reverse();
    const box = byId("events");
    byId("events-empty").hidden = found.length > 0;
    box.hidden = found.length === 0;
    if (isFirst) box.replaceChildren();
    const newest = Number(box.firstElementChild?.dataset.n ?? -1);
    for (const event of found.filter((each) => each.n > newest).reverse()) {
      const before = box.firstElementChild;
      const isMore = event.what === "path" && before?.dataset.path === event.node_id; // one that flaps fills one line
      const count = isMore ? Number(before.dataset.count) + 1 : 1;
      if (isMore) before.remove();
      box.prepend(this.event(event, count));
    }
    while (box.childElementCount > MOST_EVENTS) box.lastElementChild.remove();
    setText(byId("zone"), `local time, ${zoneText()}`);
  }

  event(event, count) {
    const text = count > 1 ? `${event.text} (${count} changes)` : event.text;
    const named = event.node_id === null ? h("span", {}, prose(text))
      : h("button", { type: "button", onclick: () => this.onSelect(event.node_id) }, prose(text));
    return h("li", { dataset: { n: event.n, at: Date.parse(event.at), count, node: this.state.nodes[event.node_id]?.hostname ?? "", path: event.what === "path" ? event.node_id : "" }, class: event.severity },
      timeElement(event.at), badge(event.severity), h("div", {}, named, event.detail ? h("p", { class: "muted" }, prose(event.detail)) : null));
  }

  // A stripe beside what happened while a node was silent.
  markEvents() {
    const outages = this.outages();
    for (const item of byId("events").children) {
      const those = outages.filter(({ from, to }) => item.dataset.at >= from && item.dataset.at <= to + 999); // they are told in seconds
      const during = those.find(({ hostname }) => hostname === item.dataset.node) ?? those.at(-1);
      if (during) item.dataset.during = during.kind;
      else delete item.dataset.during;
      item.title = during?.text ?? "";
    }
  }

  drawTimes() {
    this.drawRun();
    for (const time of document.querySelectorAll("time")) setText(time, whenText(time.dateTime));
  }
}

// UTC+1, UTC−3:30
function zoneText() {
  const minutes = -new Date().getTimezoneOffset();
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "−" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

const carried = (total, now) => h("td", {}, h("span", { class: "now" }, nowText(now)), h("span", { class: "total" }, total ?? "–"));

// EasyTier says "1.99 kB".
function sizeOf(text) {
  const found = /^([\d.]+) ?([kMGT]?)i?B$/.exec(text ?? "");
  return found ? Number(found[1]) * 1000 ** " kMGT".indexOf(found[2] || " ") : 0;
}

// 0, 1, 2, 5 → 0–2, 5
function spans(texts) {
  const numbers = texts.map(Number);
  if (numbers.some((each) => !Number.isInteger(each))) return texts.join(", ");
  numbers.sort((a, b) => a - b);
  const found = [];
  for (const each of numbers) {
    if (found.length && each === found.at(-1)[1] + 1) found.at(-1)[1] = each;
    else found.push([each, each]);
  }
  return found.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}
