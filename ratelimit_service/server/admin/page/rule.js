// More of a rule, in the dialog: its last sixty minutes.

import {get, make, OUTCOMES, pathWords} from "./dom.js";
import {Chart} from "./chart.js";
import {openDialog} from "./dialog.js";

const OF_A_RULE = [...OUTCOMES, ["spared", "Spared"]];

export function openRule(rule) {
  const chart = new Chart(OF_A_RULE), problem = make("p", "bad");
  const facts = [["Limit", rule.limit], ["Options", rule.options.join(", ")], ["Where", rule.place]].filter(([, words]) => words);
  const asked = {domain: rule.domain, rule: rule.path.join(".")};
  const list = make("dl", "facts", ...facts.flatMap(([name, words]) => [make("dt", "", name), make("dd", "", words)]));
  return openDialog(pathWords([rule.domain, ...rule.path]), [list, problem, chart.figure], async () => {
    try {
      const history = await get("/status/history", asked);
      chart.fill("Cost of each minute", history.columns, history);
      problem.replaceChildren();
    } catch (error) {
      problem.replaceChildren(error.message);
    }
  });
}
