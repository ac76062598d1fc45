// The processes of the service.

import {ago, at, make, table, whole} from "./dom.js";
import {rateOf} from "./status.js";

function processRow(one) {
  const cpu = rateOf(`pid ${one.pid}`), cell = text => make("td", "number", text ?? "–");
  return make("tr", "", make("td", "", one.name), cell(String(one.pid)), cell(one.ready === false ? "starting" : "running"),
    cell(one.connections === null ? null : whole(one.connections)), cell(cpu === undefined ? null : `${Math.round(100 * cpu)} %`),
    cell(one.cpu_seconds === null ? null : `${one.cpu_seconds.toFixed(1)} s`), cell(ago(one.age_seconds)),
    cell(one.restarts === undefined ? null : whole(one.restarts)));
}

export function show(status) {
  const all = [{...status.process, name: status.workers.length ? "parent" : "service"},
    ...status.workers.map(one => ({...one, name: `worker ${one.number}`}))];
  at("processes").replaceChildren(table("Processes", "the first answers HTTP; CPU in % of one",
    ["Process", "Process id", "State", "Connections", "CPU now", "CPU in all", "Runs for", "Restarts"], all.map(processRow)));
}
