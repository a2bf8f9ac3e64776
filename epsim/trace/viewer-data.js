// The page's data: spans of all tracks, their lanes, the rows that the filters leave, and the table. Times are
// picoseconds in doubles, exact below 2^53 ps (2.5 hours). html.py joins the viewer-*.js files into one function.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
const decode = ([kind, text]) => {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = letters.charCodeAt(at);
  return new KINDS[kind](bytes.buffer);
};
const cuts = decode(data.cuts), names = decode(data.name), starts = decode(data.start_ps);
const lengths = decode(data.length_ps), sizes = decode(data.size_bytes), peers = decode(data.peer);
const numSpans = starts.length, numTracks = data.tracks.length;
const endOf = (span) => starts[span] + lengths[span];

const GUTTER = 176, AXIS = 28, HEAD = 22, LANE = 17, MOST_LANES = 4, LINK = 14;
const groupOf = (track) => data.groups[data.tracks[track][0]];
// "AIV 0" to "AIV 63" share one switch, "AIV #"; a name that stands alone keeps its number.
const kindOf = (track) => data.tracks[track][1].replace(/\d+/g, '#');
const isPhaseOn = data.names.map(() => true);
const kinds = [...new Set(data.tracks.map((_, track) => kindOf(track)))];
const titleOf = (kind) => {
  const alike = new Set(data.tracks.map((pair) => pair[1]).filter((name) => name.replace(/\d+/g, '#') === kind));
  return alike.size === 1 ? [...alike][0] : kind;
};
const isKindOn = new Map(kinds.map((kind) => [kind, true]));

// Spans that overlap in one track go to lanes; latestEnds[i] is the latest end up to span i of the track, so that
// the first visible span is found by bisection even when a long one began far to the left.
const lanes = new Uint16Array(numSpans), numLanes = new Uint16Array(numTracks).fill(1);
const latestEnds = new Float64Array(numSpans), trackOf = new Uint32Array(numSpans);
for (let track = 0; track < numTracks; track++) {
  const free = [0];
  let latest = 0;
  for (let span = cuts[track]; span < cuts[track + 1]; span++) {
    let lane = 0;
    while (lane < free.length && free[lane] > starts[span]) lane++;
    if (lane === free.length && lane === 64) lane = 63;
    free[lane] = endOf(span);
    lanes[span] = lane;
    trackOf[span] = track;
    latestEnds[span] = latest = Math.max(latest, endOf(span));
  }
  numLanes[track] = free.length;
}
const lastEnd = Math.max(1, data.last_end_ps, data.links ? data.links.edges_ps.at(-1) : 0);

// ---- words
const UNITS = [[1e12, 's'], [1e9, 'ms'], [1e6, 'µs'], [1e3, 'ns'], [1, 'ps']];
const trim = (text) => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);
const time = (ps, digits = 6) => {
  if (ps === 0) return '0';
  const [unit, name] = UNITS.find(([size]) => Math.abs(ps) >= size) || UNITS[4];
  return `${trim((ps / unit).toFixed(unit === 1 ? 0 : Math.min(digits, Math.log10(unit))))} ${name}`;
};
const count = (value) => value.toLocaleString('en');
const amount = (bytes) => {
  const step = bytes >= 1e9 ? [1e9, 'GB'] : bytes >= 1e6 ? [1e6, 'MB'] : bytes >= 1e3 ? [1e3, 'kB'] : [1, 'B'];
  return `${trim((bytes / step[0]).toFixed(step[0] === 1 ? 0 : 2))} ${step[1]}`;
};
const element = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const swatch = (colour) => element('span', null, { class: 'swatch', style: `background:${colour}` });

// ---- rows and filters
let rows = [], rowsHeight = 0;
const view = { low: 0, high: lastEnd };
const isGroupWanted = () => {
  const parts = $('ranks').value.toLowerCase().split(',').map((part) => part.trim()).filter(Boolean);
  const tests = parts.map((part) => {
    const range = part.match(/^(\d+)(?:\s*-\s*(\d+))?$/);
    if (!range) return (group) => group.toLowerCase().includes(part);
    const low = Number(range[1]), high = Number(range[2] ?? range[1]);
    return (group) => {
      const found = group.match(/^rank (\d+)$/);
      return found !== null && Number(found[1]) >= low && Number(found[1]) <= high;
    };
  });
  return (group) => tests.length === 0 || tests.some((test) => test(group));
};
const layOut = () => {
  const isWanted = isGroupWanted();
  rows = [];
  let y = 0, group = null;
  for (let track = 0; track < numTracks; track++) {
    if (!isKindOn.get(kindOf(track)) || !isWanted(groupOf(track))) continue;
    if (groupOf(track) !== group) {
      group = groupOf(track);
      rows.push({ track: -1, group, y, height: HEAD });
      y += HEAD;
    }
    const height = LANE * Math.min(numLanes[track], MOST_LANES) + 4;
    rows.push({ track, group, y, height });
    y += height;
  }
  rowsHeight = y;
  nameRows();
  fillTable();
  resize();
};
// What the picture holds, as text inside the canvas for those who cannot see it.
const nameRows = () => {
  const lines = new Map();
  for (const { track, group } of rows) if (track >= 0) lines.set(group, [...(lines.get(group) ?? []), data.tracks[track][1]]);
  $('gantt').querySelector('canvas').textContent =
    [...lines].map(([group, resources]) => `${group}: ${resources.join(', ')}`).join('; ');
};
const fillTable = () => {
  const sums = data.names.map(() => ({ spans: 0, total: 0, longest: 0, bytes: 0 }));
  let whole = 0;
  for (const { track } of rows) {
    for (let span = track < 0 ? 0 : cuts[track]; track >= 0 && span < cuts[track + 1]; span++) {
      const sum = sums[names[span]];
      sum.spans += 1;
      sum.total += lengths[span];
      sum.longest = Math.max(sum.longest, lengths[span]);
      sum.bytes += sizes[span];
      whole += lengths[span];
    }
  }
  const order = sums.map((_, phase) => phase).filter((phase) => sums[phase].spans);
  order.sort((a, b) => sums[b].total - sums[a].total || a - b);
  $('table').tBodies[0].replaceChildren(...order.map((phase) => {
    const { spans, total, longest, bytes } = sums[phase], share = whole ? total / whole : 0;
    const row = element('tr', null), first = element('td', null), last = element('td', `${(100 * share).toFixed(1)} %`);
    first.append(swatch(data.colours[phase]), ` ${data.names[phase]}`);
    const bar = element('span', null, { class: 'share' });
    bar.append(element('i', null, { style: `width:${100 * share}%;background:${data.colours[phase]}` }));
    last.append(bar);
    const cells = [count(spans), time(total, 3), time(total / spans, 3), time(longest, 3), bytes ? amount(bytes) : ''];
    row.append(first, ...cells.map((cell) => element('td', cell)), last);
    return row;
  }));
};
