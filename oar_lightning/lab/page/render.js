const ROW = 10, OVERVIEW = 12;  // pixels, as in the style
const choice = {truths: data.truths.map(() => true), said: data.estimators.map(e => data.contenders.includes(e.name))};
let shown = 'score', measure = 0, by = -1;

const place = (own, i) => {
  const count = own.count || (own.count = own.place.filter(p => p > 0).length);
  return own.place[i] ? 'fghijk'[Math.round(5 * (count < 2 ? 1 : 1 - (own.place[i] - 1) / (count - 1)))] : '.';
};
const range = (from, to) => `${from}px ${to}px`;

// What a strip shows: truths as {mark, bar}, a shade and whether it has a bar; '#' is a decisive token of unknown size.
const ofTruth = own => i => own.known[i] === '0' ? {mark: '.'} : own.shades
  ? {mark: clipped(own.shades[i]), bar: own.decisive[i] === '1'} : {mark: own.decisive[i] === '1' ? '#' : '0'};
const ofEstimator = own => i => {
  const mark = shown === 'place' ? place(own, i) : own[shown + '_shades'][i];
  return {mark: clipped(mark), bar: '<>'.includes(mark)};
};
const clipped = mark => mark === '<' ? 'a' : mark === '>' ? 'k' : mark;
const paints = {'.': 'transparent', '#': 'var(--ink)', '0': 'var(--panel)', '?': 'var(--line)'};
const paint = mark => paints[mark] || `var(--${mark})`;
const weight = ({mark, bar}) => mark === '#' || bar ? 9 : mark === '0' ? -.5 : mark === '?' ? .5 : strength(mark);

class Completion extends Reader {
  constructor(section, values, number) {
    super(section, values.lengths);
    Object.assign(this, {values, number});
    this.names = section.querySelector('.names');
    this.gutters = element('div', '', '');
    this.gutters.setAttribute('aria-hidden', 'true');
    this.details.append(this.gutters);
    new ResizeObserver(() => this.label()).observe(this.tokensBox);
    this.details.addEventListener('toggle', () => this.label());
    if (this.details.open) this.build();
  }
  strips() {
    const of = (list, kind, make) => list.flatMap((own, j) => choice[kind][j] ? [make(own)] : []);
    return [of(this.values.truths, 'truths', ofTruth), of(this.values.said, 'said', ofEstimator)];
  }
  paint() {
    const [truths, said] = this.strips();
    if (this.tokens) this.tokens.forEach((token, i) => {
      token.className = 't' + (this.values.reasoning[i] === '1' ? '' : ' outside') + (this.values.free[i] === '1' ? ' free' : '')
        + (i === this.at ? ' current' : '');
      const layers = [[truths, 'top'], [said, 'bottom']].flatMap(([rows, side]) =>
        rows.length ? [`${this.column(rows, i)} ${side} / 100% ${ROW * rows.length}px no-repeat`] : []);
      token.style.background = layers.join(', ');
    });
    const all = [...truths, ...said];
    this.stripBox.style.height = OVERVIEW * all.length + 'px';
    this.stripBox.style.background = all.map((row, n) => `${this.line(row)} 0 ${OVERVIEW * n}px / 100% ${OVERVIEW - 1}px no-repeat`).join(', ');
    this.label();
  }
  // The colours of a token's strips on one side of the text, from top to bottom, with a gap below each.
  column(rows, i) {
    const stops = rows.flatMap((row, n) => {
      const {mark, bar} = row(i), from = ROW * n, to = from + ROW - 1;
      return [`${paint(mark)} ${range(from, bar ? to - 3 : to)}`, ...(bar ? [`var(--ink) ${range(to - 3, to)}`] : []),
        `transparent ${range(to, to + 1)}`];
    });
    return `linear-gradient(180deg, ${stops})`;
  }
  line(row) {
    const stops = this.places().map(([first, end, from, to]) => {
      let best = {mark: '.'};
      for (let i = first; i < end; i++) { const own = row(i); if (weight(own) > weight(best)) best = own; }
      return `${paint(best.mark)} ${from.toFixed(2)}% ${to.toFixed(2)}%`;
    });
    return `linear-gradient(90deg, ${stops})`;
  }
  // The strips' names: beside the overview with the estimator's quality here, and beside each line of the text.
  label() {
    const truths = data.truths.flatMap((t, j) => choice.truths[j] ? [t.name] : []);
    const said = data.estimators.flatMap((e, j) => choice.said[j] ? [[e.name, (this.values.quality[measure] || [])[j]]] : []);
    const named = (name, kind, value) => {
      const row = element('div', kind, '');
      row.append(element('span', '', name), element('span', '', value === undefined || value === null ? '' : value.toFixed(2)));
      row.title = name;
      return row;
    };
    this.names.replaceChildren(...truths.map(t => named(t, 'truth')), ...said.map(([name, value]) => named(name, '', value)));
    if (!this.tokens || !this.details.open) return this.gutters.replaceChildren();
    const box = this.details.getBoundingClientRect(), lines = new Map(), all = this.strips().flat();
    this.tokens.forEach((token, i) => {
      if (!all.some(row => row(i).mark !== '.')) return;
      for (const rect of token.getClientRects())
        if (rect.width > 1 && !lines.has(Math.round(rect.top))) lines.set(Math.round(rect.top), rect);
    });
    const template = element('div', 'gutter', '');
    template.append(...truths.map(t => element('div', 'truth', t)), element('p', '', ''), ...said.map(([name]) => element('div', '', name)));
    this.gutters.replaceChildren(...[...lines.values()].map(rect => {
      const gutter = template.cloneNode(true);
      gutter.style.top = rect.top - box.top + 'px';
      Object.assign(gutter.querySelector('p').style, {margin: 0, height: rect.height - ROW * (truths.length + said.length) + 'px'});
      return gutter;
    }));
  }
  strong() {
    const truths = this.values.truths.filter((_, j) => choice.truths[j]);
    if (truths.some(t => t.decisive.includes('1'))) return i => truths.some(t => t.decisive[i] === '1');
    return i => this.values.said.some((own, j) => choice.said[j] && own.place[i] > 0 && own.place[i] <= 3);
  }
  words(i) {
    const v = this.values, width = Math.max(10, ...data.truths.map(t => t.name.length), ...data.estimators.map(e => e.name.length));
    const kind = (v.reasoning[i] === '1' ? 'reasoning' : 'outside the reasoning') + (v.free[i] === '1' ? ', free' : '');
    const lines = [`${i + 1}: "${this.texts[i].replace('\n', '')}" (${kind})`, `p ${v.p[i]}, entropy ${v.entropy[i]} nats`];
    data.truths.forEach((truth, j) => {
      const own = v.truths[j];
      if (!choice.truths[j]) return;
      const said = own.known[i] === '0' ? 'not known' : (own.value ? own.value[i] + ' ' : '') + (own.decisive[i] === '1' ? 'decisive' : own.value ? '' : 'not decisive');
      lines.push(`${truth.name.padEnd(width)} ${said}`);
    });
    lines.push(`${''.padEnd(width)} ${'score'.padStart(10)} ${'place'.padStart(6)} advantage`);
    data.estimators.forEach((estimator, j) => {
      const own = v.said[j];
      if (choice.said[j]) lines.push(`${estimator.name.padEnd(width)} ${String(own.score[i]).padStart(10)} ${String(own.place[i] || '-').padStart(6)} ${String(own.advantage[i]).padStart(9)}`);
    });
    return lines.join('\n');
  }
  // How good the chosen estimator, or all contenders on average, are here; NaN where that is not defined.
  get quality() {
    const own = this.values.quality[measure] || [], names = data.estimators.map(e => e.name);
    const values = own.filter((v, j) => v !== null && (by < 0 ? data.contenders.includes(names[j]) : j === by));
    const mean = values.length ? values.reduce((a, b) => a + b) / values.length : NaN;
    return data.measures[measure]?.low ? -mean : mean;
  }
}

const boxes = [...document.querySelectorAll('.completion')];
const all = boxes.flatMap((section, i) => section.querySelector('.strip') ? [new Completion(section, data.completions[i], i)] : []);

function size() {
  const root = document.documentElement.style;
  root.setProperty('--above', ROW * choice.truths.filter(Boolean).length + 'px');
  root.setProperty('--below', ROW * choice.said.filter(Boolean).length + 'px');
}

function sort() {
  const order = all.map(c => [c, c.quality]).sort(([a, x], [b, y]) => isNaN(x) - isNaN(y) || x - y || a.number - b.number);
  document.getElementById('completions')?.append(...order.map(([c]) => c.section), ...boxes.filter(b => !b.querySelector('.strip')));
  all.forEach(c => c.label());
}

function choose(id, names, change) {
  const select = document.getElementById(id);
  names.forEach((name, value) => select.append(Object.assign(element('option', '', name), {value})));
  select.addEventListener('change', () => { change(Number(select.value)); sort(); });
}

if (all.length) {
  choose('measure', data.measures.map(m => m.title), value => { measure = value; });
  choose('by', ['the estimators, on average', ...data.estimators.map(e => e.name)], value => { by = value - 1; });
  for (const [kind, list] of [['truths', data.truths], ['said', data.estimators]]) list.forEach((own, j) => {
    const label = element('label', own.control ? 'control' : '', ''), box = Object.assign(element('input', '', ''), {type: 'checkbox', checked: choice[kind][j]});
    label.append(box, ' ' + own.name);
    box.addEventListener('change', () => { choice[kind][j] = box.checked; size(); all.forEach(c => c.paint()); });
    document.getElementById('rows').append(label);
  });
  for (const input of document.querySelectorAll('input[name=shade]'))
    input.addEventListener('change', () => { shown = input.value; all.forEach(c => c.paint()); });
  size();
  start(all);
}
for (const key of document.querySelectorAll('.key')) for (const [event, on] of [['mouseenter', true], ['mouseleave', false]])
  key.addEventListener(event, () => document.querySelectorAll('g.curve').forEach(curve => {
    curve.classList.toggle('dim', on && curve.dataset.name !== key.dataset.name);
    curve.classList.toggle('strong', on && curve.dataset.name === key.dataset.name);
  }));
