// The processes of the service, and where it listens.

import {ago, at, make, setText, Table, whole} from "./dom.js";
import {cpuOf} from "./status.js";

const processes = new Table("Processes", "the first answers HTTP; CPU in % of one",
  ["Process", "Process id", "State", "Connections", "CPU now", "CPU in all", "Runs for", "Restarts"]);
const listening = make("p", "soft");

function processRow(one) {
  const cpu = cpuOf(one.pid), cell = text => make("td", "number", text ?? "–");
  return make("tr", "", make("td", "", one.name), cell(String(one.pid)), cell(one.ready === false ? "starting" : "running"),
    cell(one.connections === null ? null : whole(one.connections)), cell(cpu === undefined ? null : `${Math.round(100 * cpu)} %`),
    cell(one.cpu_seconds === null ? null : `${one.cpu_seconds.toFixed(1)} s`), cell(ago(one.age_seconds)),
    cell(one.restarts === undefined ? null : whole(one.restarts)));
}

export function show(status) {
  const all = [{...status.process, name: status.workers.length ? "parent" : "service"},
    ...status.workers.map(one => ({...one, name: `worker ${one.number}`}))];
  processes.fill(all.map(processRow));
  setText(listening, `Listening: ${status.listening.map(one => `${one.what} ${one.address}`).join(", ")}`);
}

at("processes").append(processes.section, listening);
