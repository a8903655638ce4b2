// What the page says at its top: one sentence, and a few figures. Pure.

import { NEEDS_A_LOOK, figureName, now, numberText, plural, silenceText, spanText } from "./dom.js";

const isBroken = (node) => node.health === "trouble" || node.health === "away";

// All work only where each was heard of late, and none is missing. What changes each second is not read aloud each time.
export function verdictOf(nodes, head, at = now()) {
  const all = Object.values(nodes);
  const of = (isSo) => all.filter(isSo).length;
  const [broken, warnings, coming, off] = [of(isBroken), ...["warning", "coming", "off"].map((kind) => of((node) => node.health === kind))];
  const paused = all.filter((node) => node.health === "paused");
  const expected = all.length - off;
  const found = [];
  if (broken) found.push(`${broken} of ${plural(all.length, "machine")} ${broken === 1 ? "does" : "do"} not work`);
  if (paused.length === 1) found.push(`${paused[0].hostname} is paused`);
  else if (paused.length) found.push(`${paused.length} of ${plural(all.length, "machine")} are paused`);
  if (!found.length && coming) found.push(`${expected - coming} of ${plural(expected, "machine")} work`);
  if (!found.length) found.push(expected > 1 ? `All ${expected} machines work` : off ? "No other machine is switched on" : "Nobody else is in the network yet");
  const more = [];
  if (coming) more.push(`${coming} ${coming === 1 ? "is" : "are"} starting`);
  if (warnings) more.push(`${plural(warnings, "has", "have")} something to look at`);
  if (off) more.push(`${off} ${off === 1 ? "is" : "are"} switched off`);
  let text = found.join(", ");
  if (more.length) text += `${broken || paused.length ? "," : ";"} ${more.join(", ")}`;
  if (head.phase !== "Ready") text += `; the head is ${head.phase.toLowerCase()}`;
  const kind = broken ? "trouble" : paused.length ? "paused" : warnings || head.phase !== "Ready" ? "warning" : coming ? "coming" : "ok";
  return { kind, text, more: paused.length === 1 && !broken ? silenceText(paused[0], at) : "" };
}

export const needsALook = (node) => NEEDS_A_LOOK.includes(node.health);

// Names and values of the row below it; while a run is on, of the run.
export function figuresOf({ head, nodes, measures, run, points }, at = now()) {
  const silent = Object.values(nodes).filter((node) => node.silent_since).map((node) => at - Date.parse(node.silent_since));
  const last = silent.length ? ["Longest silence", spanText(Math.max(...silent) / 1000), ""] : ["Slowest round trip", ...slowest(measures)];
  const ready = ["Nodes ready", `${head.alive}`, ` of ${head.nodes}`];
  if (!run?.in_progress) {
    return [ready, ["CPUs", `${Math.round(head.cpus)}`, ""], ["GPUs", `${Math.round(head.gpus)}`, ""], last, ["Rides through", spanText(head.ride_through_s), ""]];
  }
  const name = figureName(run.metric_names);
  const newest = points.findLast((point) => point.run_id === run.run_id && name in point.values);
  const left = leftSeconds(run);
  return [
    ["Step", run.step === null ? "–" : stepText(run.step), run.total_steps === null ? "" : ` of ${stepText(run.total_steps)}`],
    ["Time left", left === null ? "–" : spanText(left), ""],
    [name ? capital(name) : "Figures", newest ? numberText(newest.values[name]) : "–", ""],
    ready,
    last,
  ];
}

// Null where the total is not known, or how fast it goes.
export function leftSeconds(run) {
  if (run.total_steps === null || run.step === null || !run.steps_per_s) return null;
  return Math.max(0, run.total_steps - run.step) / run.steps_per_s;
}

export const stepText = (step) => Math.round(step).toLocaleString("en");

function slowest(measures) {
  const rtts = Object.values(measures).map((each) => each.rtt_ms).filter((rtt) => rtt !== null);
  if (rtts.length === 0) return ["–", ""];
  const most = Math.max(...rtts);
  return [most < 10 ? most.toFixed(1) : `${Math.round(most)}`, " ms"];
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
