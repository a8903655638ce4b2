// Small charts by hand: lines over time or steps, with a few round ticks and the value under the pointer.

import { h, s } from "./dom.js";

const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;

export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const first = Math.ceil(low / step) * step;
  const found = [];
  for (let index = 0; index <= count && first + index * step <= high + step * 1e-9; index += 1) {
    const value = first + index * step;
    if (index > 0 && value === first + (index - 1) * step) continue; // of neighbouring numbers, none lies between them
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found.length ? found : [low];
}

const STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map((step) => step * 1000);

// Of times, in milliseconds: whole minutes, where there is room for no more than so many. A clock that was set late puts
// years between two points.
export function timeTicks(low, high, count) {
  const day = STEPS_MS.at(-1);
  const step = STEPS_MS.find((each) => (high - low) / each <= count) ?? Math.ceil((high - low) / count / day) * day;
  const first = Math.ceil(low / step) * step;
  return [...Array(Math.max(0, Math.floor((high - first) / step) + 1)).keys()].map((index) => first + index * step);
}

// series: [{name, class, points: [[x, y|null, words]…]}]; formats: x, y; isTime: x is one; isArea; fromZero; bands:
// [{kind, from, to, text}…], stretches of x behind the lines; until: x of the right edge at least
export function drawChart(box, series, { xText, yText, label, isTime = false, fromZero = false, isArea = false, bands = [], until = -Infinity, empty = "Nothing yet." }) {
  const all = series.flatMap((each) => each.points).filter(([, y]) => y !== null);
  if (new Set(all.map(([x]) => x)).size < 2) { // one moment is no line, whoever was looked at in it
    box.replaceChildren(h("p", { class: "empty" }, empty));
    return;
  }
  const width = box.clientWidth || 400;
  const height = box.clientHeight || 160;
  const xs = series.flatMap((each) => each.points).map(([x]) => x); // also of what was not answered: that is seen, too
  const ys = all.map(([, y]) => y);
  const x0 = Math.min(...xs);
  const x1 = Math.max(...xs, until, x0 + 1e-9);
  let y0 = Math.min(...ys);
  let y1 = Math.max(...ys);
  if (fromZero) y0 = Math.min(0, y0);
  if (y0 === y1) [y0, y1] = fromZero && y1 === 0 ? [0, 1] : [y0 - Math.abs(y0) * 0.1 - (y0 === 0 ? 1 : 0), y1 + Math.abs(y1) * 0.1 + (y1 === 0 ? 1 : 0)];
  else if (!fromZero) [y0, y1] = [y0 - (y1 - y0) * 0.06, y1 + (y1 - y0) * 0.06];
  else y1 += (y1 - y0) * 0.08;
  const yTicks = ticks(y0, y1, Math.max(2, Math.floor(height / 40)));
  const LEFT = 16 + 6.4 * Math.max(...yTicks.map((value) => yText(value).length));
  const atX = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const atY = (y) => height - BOTTOM - ((y - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const shown = bands.filter(({ from, to }) => to >= x0 && from <= x1);
  for (const { kind, from, to } of shown) {
    const left = atX(Math.max(from, x0));
    const wide = Math.max(2, atX(Math.min(to, x1)) - left); // a short one is seen, too
    svg.append(s("rect", { class: `band ${kind}`, x: left.toFixed(1), width: wide.toFixed(1), y: TOP, height: height - BOTTOM - TOP }));
  }
  for (const value of yTicks) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: atY(value), y2: atY(value) }));
    svg.append(s("text", { class: "tick", x: LEFT - 8, y: atY(value) + 4, "text-anchor": "end" }, yText(value)));
  }
  const xTicks = (isTime ? timeTicks : ticks)(x0, x1, Math.max(2, Math.floor(width / 130)));
  for (const value of xTicks) {
    svg.append(s("text", { class: "tick", x: Math.min(Math.max(atX(value), LEFT + 8), width - RIGHT - 14), y: height - 6, "text-anchor": "middle" }, xText(value)));
  }
  for (const each of series) {
    const path = linePath(each.points, atX, atY);
    if (isArea && path) {
      const known = each.points.filter(([, y]) => y !== null);
      svg.append(s("path", { class: `area ${each.class}`, d: `${path}L${atX(known.at(-1)[0]).toFixed(1)} ${atY(y0)}L${atX(known[0][0]).toFixed(1)} ${atY(y0)}Z` }));
    }
    svg.append(s("path", { class: `curve ${each.class}`, d: path }));
    const last = each.points.findLast(([, y]) => y !== null);
    if (last) svg.append(s("circle", { class: `last ${each.class}`, cx: atX(last[0]), cy: atY(last[1]), r: 3 }));
  }
  const cross = s("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  const tip = h("div", { class: "tip", hidden: true });
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const x = x0 + ((event.clientX - bounds.left - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    const nearest = series[0].points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    cross.setAttribute("x1", atX(nearest[0]));
    cross.setAttribute("x2", atX(nearest[0]));
    cross.setAttribute("visibility", "visible");
    const index = series[0].points.indexOf(nearest);
    const of = (band) => x >= band.from && x <= band.to;
    tip.replaceChildren(h("strong", {}, [xText(nearest[0]), nearest[2]].filter(Boolean).join(" · ")), ...series.map((each) => {
      const value = each.points[index]?.[1];
      return h("span", {}, `${each.name} ${value === null || value === undefined ? "–" : yText(value)}`);
    }), ...shown.filter(of).map((band) => h("span", {}, band.text)));
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(atX(nearest[0]) - tip.offsetWidth / 2, 4), width - tip.offsetWidth - 4)}px`;
    tip.style.top = "0";
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    tip.hidden = true;
  });
  box.replaceChildren(svg, tip);
}

function linePath(points, atX, atY) {
  let path = "";
  let isDown = false;
  for (const [x, y] of points) {
    if (y === null) {
      isDown = false;
      continue;
    }
    path += `${isDown ? "L" : "M"}${atX(x).toFixed(1)} ${atY(y).toFixed(1)}`;
    isDown = true;
  }
  return path;
}
