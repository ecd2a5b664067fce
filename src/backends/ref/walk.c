/* The walk; see walk.h. */
#include "backends/ref/walk.h"

#include <string.h>

void wn_walk_lay(const struct wn_exec *exec, const struct wn_evictions *op, struct wn_arrays *arrays,
                 struct wn_walk *w) {
  const struct wn_attention *a = op->a;
  const int64_t P = wn_slot_groups(a), n = a->Tk, D = a->D, G = a->sel.on ? wn_selection_groups(a) : 0;
  const int64_t sinks = a->sinks.n;
  const size_t each = wn_dtype_size(exec->dtype), wide = sizeof(double);
  const bool kind = op->rule.by == WN_EVICT_KIND && !op->constant;
  const bool asks = op->rule.by == WN_EVICT_GIVEN && !op->rule.score; /* op->rule.ask, also while measuring */
  const int64_t room = asks ? n : kind ? wn_policy_room(op->rule.kind, n, D) : 0;
  *w = (struct wn_walk){.op = op, .a = a, .dtype = exec->dtype};
  w->isa = exec->ctx->isa;
  w->kv_heads = a->Hkv / P;
  w->heads = a->H / P;
  w->sums = op->sums;
  w->operation = wn_evictions_attends(op);
  w->all = w->sums && !w->operation;
  if (w->all || op->selections) w->choices = G > 1 ? G / P : G;
  w->notes = op->notes;
  w->oldest = op->rule.by == WN_EVICT_OLDEST;
  const bool products = w->all || w->choices > 0, beside = w->all || (w->choices > 0 && !a->sel.bilinear);
  const bool curve = w->all && wn_walk_maps_whole(a), distance = a->relative.P > 0 || a->maps > 0 || a->span.on;
  const int64_t run = w->all ? w->heads : w->choices, reach = wn_walk_reach(a), R = WN_WALK_ROWS;
  w->scratch_bytes = wn_walk_scratch(exec, w, products);
  const struct wn_array rows[] = {
      WN_ARRAY_FOR(w->key, "keys held", true, WN_DIMS(n)),
      WN_ARRAY_FOR(w->place, "positions held", true, WN_DIMS(n)),
      WN_ARRAY_FOR(w->at, "positions in the document", true, WN_DIMS(n)),
      WN_ARRAY_SIZED(w->score, wide, "scores", op->constant, WN_DIMS(n)),
      WN_ARRAY_SIZED(w->room, wide, "scores of a row", true, WN_DIMS(room)),
      WN_ARRAY_SIZED(w->note, wide, "notes", true, WN_DIMS(w->notes, n)),
      WN_ARRAY_SIZED(w->F, wide, "selections", true, WN_DIMS(w->choices, n)),
      WN_ARRAY_SIZED(w->keys, each, "keys side by side", products, WN_DIMS(n, D)),
      WN_ARRAY_SIZED(w->logits, each, "logits", beside, WN_DIMS(run, R, n)),
      WN_ARRAY_SIZED(w->selecting, each, "selecting logits", a->sel.bilinear, WN_DIMS(w->choices, R, n)),
      WN_ARRAY_SIZED(w->relative, each, "relative logits", beside && a->relative.P > 0, WN_DIMS(run, R, reach)),
      WN_ARRAY_SIZED(w->sink_logits, each, "logits of the sinks", w->all, WN_DIMS(run, R, sinks)),
      WN_ARRAY_SIZED(w->bias, wide, "biases", beside && a->maps > 0, WN_DIMS(run, n)),
      WN_ARRAY_SIZED(w->add, each, "added to a row", w->all, WN_DIMS(w->choices > 0 ? w->choices : 1, n)),
      WN_ARRAY_SIZED(w->zero, each, "zeros", curve, WN_DIMS(run, n)),
      WN_ARRAY_SIZED(w->extra, each, "added by distance", w->all && distance, WN_DIMS(run, n)),
      WN_ARRAY_SIZED(w->span, each, "spans", w->all && a->span.on, WN_DIMS(run, n)),
      WN_ARRAY_SIZED(w->row_sums, each, "attention sums", w->all, WN_DIMS(n)),
      WN_ARRAY_SIZED(w->row_notes, wide, "attention sums of a row", w->sums, WN_DIMS(n)),
      WN_ARRAY_SIZED(w->y, each, "outputs of a row", w->operation, WN_DIMS(w->heads, D)),
      WN_ARRAY_SIZED(w->f, each, "selections of the rows", w->operation, WN_DIMS(G, n)),
      WN_ARRAY_SIZED(w->weights, each, "weights of a row", w->operation, WN_DIMS(n)),
      WN_ARRAY_SIZED(w->scratch, 1, "scratch of the operations", true, WN_DIMS((int64_t)w->scratch_bytes)),
  };
  WN_ARRAYS_LAY(arrays, rows);
}

void wn_walk_begin(struct wn_walk *w, int64_t b, int64_t group) {
  const struct wn_evictions_group *of = &w->op->group[group - w->op->group0];
  w->K = of->K;
  w->rule = w->op->rule;
  w->rule.sinks = of->sinks, w->rule.recent = of->recent;
  w->b = b;
  w->group = group;
  if (w->bias) wn_walk_biases(w);
  if (w->zero) memset(w->zero, 0, (size_t)(w->heads * w->a->Tk) * wn_dtype_size(w->dtype));
  wn_walk_document(w, 0);
}

void wn_walk_document(struct wn_walk *w, int64_t first) {
  w->first = first;
  w->n = w->alive = w->next = 0;
  if (w->f) memset(w->f, 0, (size_t)(wn_selection_groups(w->a) * w->a->Tk) * wn_dtype_size(w->dtype));
}

/* ---- columns ---- */

/* Keys or values of the group's columns. */
static struct wn_policy_rows walk_held_rows(const struct wn_walk *w, const void *x, struct wn_stride s,
                                            wn_gguf_type type) {
  const struct wn_policy_rows rows = {.data = x, .index = w->key, .head = s.h, .token = s.t, .type = type};
  return wn_policy_rows_from(rows, w->dtype, w->b * s.b + w->group * w->kv_heads * s.h);
}

/* The n oldest columns, as the rule sees them when the row at `position` comes. */
static struct wn_policy_held walk_held(const struct wn_walk *w, int64_t n, int64_t position) {
  struct wn_policy_held held = {.rule = &w->rule,
                                .budgets = w->rule.budgets,
                                .layer = w->rule.layer,
                                .group = w->op->first_group + w->group,
                                .count = n,
                                .row = position - w->first,
                                .budget = w->K,
                                .dtype = WN_F64,
                                .at = w->at,
                                .scores = w->score,
                                .F = w->F,
                                .notes = w->note,
                                .values = w->op->selections ? w->F : w->note,
                                .stride = w->a->Tk,
                                .heads = w->kv_heads,
                                .D = w->a->D,
                                .k = walk_held_rows(w, w->a->k, w->a->s_k, w->a->k_type),
                                .v = walk_held_rows(w, w->a->v, w->a->s_v, w->a->v_type),
                                .rows = w->dtype,
                                .room = w->room};
  for (const struct wn_score_map *t = w->a->map; t < w->a->map + w->a->maps; t++)
    if (t->kind->keyed_double)
      held.number[held.numbers++] =
          (struct wn_policy_number){t, walk_held_rows(w, t->key, t->s_key, WN_GGUF_F32), t->s_gate};
  return held;
}

void wn_walk_enter(struct wn_walk *w, int64_t c, int64_t key, int64_t place) {
  const int64_t cap = w->a->Tk;
  w->key[c] = (int32_t)key;
  w->place[c] = (int32_t)place;
  w->at[c] = (int32_t)(place - w->first);
  for (int64_t i = 0; i < w->notes; i++) w->note[i * cap + c] = 0;
  for (int64_t s = 0; s < w->choices; s++) w->F[s * cap + c] = 0;
  if (!w->score) return;
  struct wn_policy_held held = walk_held(w, c + 1, place);
  held.scores = NULL;
  wn_evict_scores(&held, c, 1, &w->score[c]);
}

/* Closes the gaps in the n columns. */
static int64_t walk_close_ranks(struct wn_walk *w, int64_t n) {
  const int64_t cap = w->a->Tk;
  int64_t kept = 0;
  for (int64_t c = 0; c < n; c++) {
    if (w->at[c] < 0) continue;
    w->key[kept] = w->key[c];
    w->place[kept] = w->place[c];
    w->at[kept] = w->at[c];
    if (w->score) w->score[kept] = w->score[c];
    for (int64_t i = 0; i < w->notes; i++) w->note[i * cap + kept] = w->note[i * cap + c];
    for (int64_t s = 0; s < w->choices; s++) w->F[s * cap + kept] = w->F[s * cap + c];
    kept++;
  }
  return kept;
}

/* If all scores are equal the oldest token is evicted. Recent tokens are never the oldest, so only sinks and pinned
 * tokens are skipped. */
static int64_t walk_oldest(struct wn_walk *w) {
  while (wn_evict_stays(&w->rule, w->rule.sinks, w->at[w->next]) || w->at[w->next] < 0) w->next++; /* -1: evicted */
  return w->next;
}

static void walk_oldest_rows(struct wn_walk *w, int64_t row0, int64_t rows, int32_t *evicted_at) {
  const int64_t own = w->a->Tk - w->a->Tq;
  const int32_t *positions = wn_slot_positions(w->a, w->b, w->group);
  for (int64_t r = 0; r < rows; r++, w->n++) {
    const int64_t key = own + row0 + r, position = positions ? positions[key] : key;
    if (w->alive == w->K) {
      const int64_t which = walk_oldest(w);
      evicted_at[w->key[which]] = (int32_t)position;
      w->at[which] = -1;
      w->alive--;
    }
    wn_walk_enter(w, w->n, key, position);
    w->alive++;
  }
}

/* Updates the notes after row `row` of the call, which is row r of the block. */
static wn_status walk_follow(const struct wn_exec *exec, struct wn_walk *w, int64_t row, int64_t r, int64_t n,
                             const int32_t *evicted_at) {
  const int64_t position = w->place[n - 1] - w->first;
  WN_TRY(wn_walk_sums(exec, w, row, r, n, evicted_at));
  if (w->op->change == WN_NOTES_OWN) {
    w->op->own->follow(&(struct wn_policy_notes){.budgets = w->rule.budgets,
                                                 .row = position,
                                                 .count = n,
                                                 .dtype = WN_F64,
                                                 .notes = w->note,
                                                 .stride = w->a->Tk,
                                                 .sums = w->row_notes});
  } else if (w->op->change == WN_NOTES_RING) {
    memcpy(w->note + position % w->notes * w->a->Tk, w->row_notes, (size_t)n * sizeof *w->row_notes);
  } else {
    for (int64_t c = 0; c < n; c++) w->note[c] += w->row_notes[c];
  }
  return WN_OK;
}

static wn_status walk_block(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows, int64_t last,
                            int32_t *evicted_at) {
  const struct wn_attention *a = w->a;
  const int64_t own = a->Tk - a->Tq;
  const int32_t *positions = wn_slot_positions(a, w->b, w->group);
  int64_t alive = w->n;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t key = own + row0 + r;
    wn_walk_enter(w, w->n + r, key, positions ? positions[key] : key);
  }
  WN_TRY(wn_walk_products(exec, w, row0, rows));
  for (int64_t r = 0; r < rows; r++) {
    const int64_t n = w->n + r + 1, position = w->place[n - 1];
    if (alive == w->K) {
      const struct wn_policy_held held = walk_held(w, n - 1, position);
      const int64_t which = wn_evict_choose(&held);
      if (w->rule.ask && w->rule.ask->status != WN_OK) return w->rule.ask->status;
      evicted_at[w->key[which]] = (int32_t)position;
      w->at[which] = -1;
      alive--;
    }
    alive++;
    if (row0 + r == last) break; /* no row comes after it */
    /* sums that expire before the budget is full have no effect */
    const bool idle = !w->sums || w->K - alive >= w->op->rows;
    for (int64_t s = 0; !a->sel.shift && s < w->choices; s++) wn_walk_select(w, s, r, n);
    if (!idle || (w->operation && a->sel.on)) WN_TRY(walk_follow(exec, w, row0 + r, r, n, evicted_at));
    for (int64_t s = 0; a->sel.shift && s < w->choices; s++) wn_walk_select(w, s, r, n);
  }
  w->n = walk_close_ranks(w, w->n + rows);
  return WN_OK;
}

wn_status wn_walk_rows(const struct wn_exec *exec, struct wn_walk *w, int64_t row0, int64_t rows, int64_t last,
                       int32_t *evicted_at) {
  if (w->oldest) {
    walk_oldest_rows(w, row0, rows, evicted_at);
    return WN_OK;
  }
  for (int64_t at = row0, n; at < row0 + rows; at += n) {
    n = row0 + rows - at < WN_WALK_ROWS ? row0 + rows - at : WN_WALK_ROWS;
    WN_TRY(walk_block(exec, w, at, n, last, evicted_at));
  }
  return WN_OK;
}
