// The last sixty minutes of all domains, and the latency of calls in them. An answer has the newest minutes of them, since no other changes.

function renewed(old, newest, minutes, passed) {
  const kept = [...old.slice(passed), ...new Array(passed).fill(0)];
  return [...kept.slice(0, minutes - newest.length), ...newest];
}

// What is known, with the newest minutes of an answer; null if minutes between the two are missing.
export function merged(known, news) {
  const {minutes, minute} = known || {}, passed = news.minute - minute;
  if (!(passed >= 0 && passed < news.minutes)) return null;
  const none = new Array(minutes).fill(0), nothing = new Array(news.minutes).fill(0), domains = {};
  for (const [domain, columns] of Object.entries(news.domains)) {
    const old = known.domains[domain] || {}, outcomes = new Set([...Object.keys(old), ...Object.keys(columns)]);
    const found = [...outcomes].map(name => [name, renewed(old[name] || none, columns[name] || nothing, minutes, passed)]);
    domains[domain] = Object.fromEntries(found.filter(([, numbers]) => numbers.some(Boolean)));
  }
  const latency = Object.fromEntries(Object.entries(news.latency).map(([name, numbers]) => [name, renewed(known.latency[name], numbers, minutes, passed)]));
  return {...news, minutes, domains, latency};
}
