/* The memory ("rooms") of segment recurrence: how many earlier tokens a layer holds, and the release of those that no
 * head can see.
 *
 * A layer needs the last wn_layer_reach tokens: the span of its widest head (Sukhbaatar et al. 2019, section 3). What
 * it holds depends only on the spans,
 *   keep = min(recurrence, reach rounded up to 64 + margin), margin 64 while spans are learned, else 0 so that a
 *   resumed run holds the same tokens. Each layer has an allocation of its own, its room. It grows as soon as `keep`
 *   does, and shrinks when it is two blocks of 64 too large, so that a span at a block's edge does not cause an
 *   allocation in every step. Tokens that a layer has dropped do not come back: a span that grows by more than the
 *   margin within a step sees fewer old tokens until later blocks have filled the room.
 *
 * Numbers per token of a layer: C of the state and G of F for each set, and 2 Hkv D of keys and values (more with
 * QK-norm and bilinear selection). Where activations are not kept (forward only, recompute) all layers share the arrays
 * of keys and values. Backward adds these once more, for the widest layer. */
#include "attention/registry.h"
#include "model/workspace.h"

static int64_t room_selections(const struct wn_workspace *ws) {
  return wn_attention_selections(&ws->model->config.attention, ws->model->config.kv_heads);
}

static bool room_own_keys(const struct wn_workspace *ws) {
  return ws->keep == WN_KEEP_ALL || ws->keep == WN_KEEP_REDUCED;
}

/* Lays out states and F of all sets; *out receives those of `set`. */
static void room_lay_states(const struct wn_workspace *ws, int64_t rows, struct wn_arrays *arrays, int64_t set,
                            struct wn_recurrence_layer *out) {
  const int64_t G = room_selections(ws), all = rows + ws->T;
  const size_t e = wn_dtype_size(ws->model->dtype);
  char *f_out, *states, *f;
  const struct wn_array shared[] = {WN_ARRAY_SIZED(f_out, e, "selections of the block", true, WN_DIMS(ws->B, G, all))};
  const struct wn_array of_set[] = {
      WN_ARRAY_SIZED(states, e, "states", true, WN_DIMS(ws->B, all, ws->model->config.width)),
      WN_ARRAY_SIZED(f, e, "selections", true, WN_DIMS(ws->B, G, all)),
  };
  WN_ARRAYS_LAY(arrays, shared);
  for (int64_t i = 0; i < ws->options.recurrence_sets; i++) {
    WN_ARRAYS_LAY(arrays, of_set);
    if (i == set) *out = (struct wn_recurrence_layer){.rows = rows, .states = states, .f = f, .f_out = f_out};
  }
}

/* Lays out the mechanisms' inputs with an entry per key, or their gradients. */
static void room_lay_inputs(const struct wn_workspace *ws, int64_t keys, struct wn_arrays *arrays,
                            void *out[WN_MECHANISM_INPUTS_MAX]) {
  struct wn_attention_input in[WN_MECHANISM_INPUTS_MAX];
  const int n = wn_layer_inputs(&ws->model->config, in);
  for (int i = 0; i < n; i++) {
    const struct wn_array table[] = {WN_ARRAY_SIZED(out[in[i].slot], wn_dtype_size(ws->model->dtype), in[i].array->name,
                                                    true, WN_DIMS(ws->B, keys, in[i].width))};
    if (in[i].how->of_keys) WN_ARRAYS_LAY(arrays, table);
  }
}

static void room_lay_keys(const struct wn_workspace *ws, int64_t rows, struct wn_arrays *arrays,
                          struct wn_layer_acts *out) {
  const wn_model_config *c = &ws->model->config;
  const int64_t keys = rows + ws->T, D = c->head_size, Hkv = c->kv_heads;
  const size_t e = wn_dtype_size(ws->model->dtype);
  const struct wn_array table[] = {
      WN_ARRAY_SIZED(out->kv, e, "keys and values", true, WN_DIMS(ws->B, keys, 2 * Hkv * D)),
      WN_ARRAY_SIZED(out->k, e, "keys", c->qk_norm, WN_DIMS(ws->B, keys, Hkv, D)),
      WN_ARRAY_SIZED(out->rstd_k, e, "rstd_k", c->qk_norm, WN_DIMS(ws->B, keys, Hkv)),
      WN_ARRAY_SIZED(out->mean_k, e, "mean_k", c->qk_norm && c->norm == WN_NORM_LAYER, WN_DIMS(ws->B, keys, Hkv)),
  };
  WN_ARRAYS_LAY(arrays, table);
  room_lay_inputs(ws, keys, arrays, out->input);
}

static void room_lay_gradients(const struct wn_workspace *ws, int64_t rows, struct wn_arrays *arrays,
                               struct wn_layer_temp *out) {
  const wn_model_config *c = &ws->model->config;
  const int64_t keys = rows + ws->T, D = c->head_size, Hkv = c->kv_heads;
  const size_t e = wn_dtype_size(ws->model->dtype);
  const struct wn_array table[] = {
      WN_ARRAY_SIZED(out->d_kv, e, "gradients of keys and values", true, WN_DIMS(ws->B, keys, 2 * Hkv * D)),
      WN_ARRAY_SIZED(out->d_k, e, "gradients of keys", c->qk_norm, WN_DIMS(ws->B, keys, Hkv, D)),
  };
  WN_ARRAYS_LAY(arrays, table);
  room_lay_inputs(ws, keys, arrays, out->d_input);
}

/* How many tokens layer l should hold. */
static int64_t room_wanted(const struct wn_workspace *ws, int64_t l) {
  if (ws->options.recurrence_whole) return ws->options.recurrence;
  return wn_layer_recurrence(ws->model, l, ws->options.recurrence, ws->options.backward);
}

/* Copies the n rows of `bytes` bytes that end at row `from_end` to those that end at row `to_end`. */
static wn_status room_move_rows(const struct wn_workspace *ws, char *to, int64_t to_end, const char *from,
                                int64_t from_end, int64_t n, size_t bytes) {
  return wn_workspace_memory(ws)->copy(ws->ctx, to + (size_t)(to_end - n) * bytes,
                                       from + (size_t)(from_end - n) * bytes, (size_t)n * bytes);
}

static wn_status room_replace(struct wn_workspace *ws, const char *what, size_t bytes, void **out) {
  WN_TRY(wn_workspace_memory(ws)->allocate(ws->ctx, what, bytes, out));
  ws->recurrence_moves++;
  return WN_OK;
}

static wn_status room_too_large(const struct wn_workspace *ws, int64_t rows) {
  return wn_fail(ws->ctx, WN_ERR_ARGUMENT,
                 "workspace of B %lld, T %lld: a recurrence of %lld tokens does not fit in memory", (long long)ws->B,
                 (long long)ws->T, (long long)rows);
}

/* Moves layer l to a new room of `rows` tokens. */
static wn_status room_move_in(struct wn_workspace *ws, int64_t l, int64_t rows) {
  struct wn_recurrence_room *room = &ws->rooms[l];
  const int64_t L = ws->model->config.layers, G = room_selections(ws), T = ws->T;
  const size_t element = wn_dtype_size(ws->model->dtype), row = (size_t)ws->model->config.width * element;
  struct wn_arrays states = {0}, keys = {0};
  struct wn_layer_acts acts;
  void *new_states, *new_keys = NULL;
  room_lay_states(ws, rows, &states, -1, NULL);
  if (room_own_keys(ws)) room_lay_keys(ws, rows, &keys, &acts);
  if (states.failed || keys.failed) return room_too_large(ws, rows);
  WN_TRY(room_replace(ws, "the recurrence of a layer", states.bytes, &new_states));
  if (room_own_keys(ws)) {
    const wn_status status = room_replace(ws, "the keys of a layer with recurrence", keys.bytes, &new_keys);
    if (status != WN_OK) {
      wn_workspace_memory(ws)->release(new_states);
      return status;
    }
  }
  for (int64_t set = 0; set < ws->options.recurrence_sets; set++) {
    const struct wn_recurrence_layer old = ws->recurrence[set * L + l];
    struct wn_recurrence_layer *now = &ws->recurrence[set * L + l];
    struct wn_arrays placed = {.base = new_states};
    room_lay_states(ws, rows, &placed, set, now);
    now->count = old.count < rows ? old.count : rows;
    for (int64_t b = 0; old.states && b < ws->B; b++)
      WN_TRY(room_move_rows(ws, now->states + (size_t)(b * (rows + T)) * row, rows,
                            old.states + (size_t)(b * (old.rows + T)) * row, old.rows, now->count, row));
    for (int64_t n = 0; old.f && n < ws->B * G; n++)
      WN_TRY(room_move_rows(ws, now->f + (size_t)(n * (rows + T)) * element, rows,
                            old.f + (size_t)(n * (old.rows + T)) * element, old.rows, now->count, element));
  }
  wn_workspace_memory(ws)->release(room->states);
  wn_workspace_memory(ws)->release(room->keys);
  ws->recurrence_bytes += states.bytes + keys.bytes - room->bytes;
  *room = (struct wn_recurrence_room){
      .rows = rows, .states = new_states, .keys = new_keys, .bytes = states.bytes + keys.bytes};
  return WN_OK;
}

/* Makes the arrays that all layers share as large as the widest layer needs. */
static wn_status room_fit_shared(struct wn_workspace *ws) {
  const int64_t L = ws->model->config.layers;
  struct wn_recurrence_room *shared = &ws->rooms[L];
  struct wn_arrays s = {0};
  struct wn_layer_acts acts;
  int64_t widest = 0;
  for (int64_t l = 0; l < L; l++)
    if (ws->rooms[l].rows > widest) widest = ws->rooms[l].rows;
  if (shared->rows == widest && shared->bytes > 0) return WN_OK;
  if (!room_own_keys(ws)) room_lay_keys(ws, widest, &s, &acts);
  if (ws->options.backward) room_lay_gradients(ws, widest, &s, &ws->temp);
  if (s.failed) return room_too_large(ws, widest);
  void *now;
  WN_TRY(room_replace(ws, "the keys of the widest layer with recurrence", s.bytes, &now));
  wn_workspace_memory(ws)->release(shared->keys);
  ws->recurrence_bytes += s.bytes - shared->bytes;
  *shared = (struct wn_recurrence_room){.rows = widest, .keys = now, .bytes = s.bytes};
  s = (struct wn_arrays){.base = now};
  if (!room_own_keys(ws)) room_lay_keys(ws, widest, &s, &acts);
  if (ws->options.backward) room_lay_gradients(ws, widest, &s, &ws->temp);
  return WN_OK;
}

wn_status wn_recurrence_fit(struct wn_workspace *ws, bool *changed) {
  *changed = false;
  if (ws->options.recurrence <= 0) return WN_OK;
  for (int64_t l = 0; l < ws->model->config.layers; l++) {
    const int64_t rows = room_wanted(ws, l), room = ws->rooms[l].rows;
    if (ws->rooms[l].states && rows <= room && rows > room - 2 * WN_RECURRENCE_GRAIN) continue;
    WN_TRY(room_move_in(ws, l, rows));
    *changed = true;
  }
  return *changed ? room_fit_shared(ws) : WN_OK;
}

wn_status wn_workspace_recurrence_reserve(wn_workspace *ws, int64_t l, int64_t rows) {
  if (ws->options.recurrence <= 0 || rows < 0 || rows > ws->options.recurrence)
    return wn_fail(ws->ctx, WN_ERR_ARGUMENT,
                   "workspace: room for %lld tokens of earlier blocks; the recurrence is %lld", (long long)rows,
                   (long long)ws->options.recurrence);
  if (ws->rooms[l].rows == rows) return WN_OK;
  WN_TRY(room_move_in(ws, l, rows));
  return room_fit_shared(ws);
}

void wn_recurrence_clear(struct wn_workspace *ws) {
  for (int64_t l = 0; ws->rooms && l <= ws->model->config.layers; l++) {
    wn_workspace_memory(ws)->release(ws->rooms[l].states);
    wn_workspace_memory(ws)->release(ws->rooms[l].keys);
  }
}

void wn_recurrence_keys(const struct wn_workspace *ws, int64_t l, struct wn_layer_acts *out) {
  struct wn_arrays s = {.base = room_own_keys(ws) ? ws->rooms[l].keys : ws->rooms[ws->model->config.layers].keys};
  room_lay_keys(ws, ws->rooms[l].rows, &s, out);
}

void wn_recurrence_bind(struct wn_run *run, const struct wn_workspace *ws, int64_t set) {
  run->recurrence = (struct wn_recurrence){.rows = ws->options.recurrence,
                                           .block = ws->T,
                                           .seen = ws->recurrence_seen[set],
                                           .whole = ws->options.recurrence_whole,
                                           .layers = ws->recurrence + set * ws->model->config.layers,
                                           .positions = ws->recurrence_positions};
}

wn_status wn_recurrence_advance(const struct wn_run *run, struct wn_workspace *ws, int64_t set) {
  const int64_t L = run->model->config.layers, T = run->T, G = room_selections(ws);
  const size_t element = wn_dtype_size(run->exec.dtype), row = (size_t)run->model->config.width * element;
  for (int64_t l = 0; l < L; l++) {
    struct wn_recurrence_layer *m = &ws->recurrence[set * L + l];
    const int64_t all = m->rows + ws->T, read = wn_recurrence_read(run, l);
    int64_t keep = room_wanted(ws, l);
    if (keep > m->rows) keep = m->rows; /* spans grew and wn_workspace_fit was not called */
    const int64_t count = m->count + T < keep ? m->count + T : keep;
    for (int64_t b = 0; b < run->B; b++) {
      char *states = m->states + (size_t)(b * all) * row;
      WN_TRY(room_move_rows(ws, states, m->rows, states, m->rows + T, count, row));
    }
    for (int64_t n = 0; m->f && n < run->B * G; n++) { /* F of tokens that no head sees does not change */
      char *f = m->f + (size_t)(n * all) * element;
      WN_TRY(
          room_move_rows(ws, f, m->rows + T, m->f_out + (size_t)(n * all) * element, m->rows + T, read + T, element));
      WN_TRY(room_move_rows(ws, f, m->rows, f, m->rows + T, count, element));
      WN_TRY(wn_workspace_memory(ws)->zero(ws->ctx, f + (size_t)m->rows * element, (size_t)ws->T * element));
    }
    m->count = count;
  }
  ws->recurrence_seen[set] += T;
  return WN_OK;
}

size_t wn_workspace_recurrence_bytes(const wn_workspace *ws) {
  return ws->recurrence_bytes;
}

uint64_t wn_workspace_recurrence_moves(const wn_workspace *ws) {
  return ws->recurrence_moves;
}

void wn_workspace_forget(wn_workspace *ws, int64_t set) {
  if (ws->options.recurrence <= 0) return;
  ws->recurrence_seen[set] = 0;
  for (int64_t l = 0; l < ws->model->config.layers; l++) ws->recurrence[set * ws->model->config.layers + l].count = 0;
}

int64_t wn_workspace_recurrence_seen(const wn_workspace *ws, int64_t set) {
  return ws->options.recurrence > 0 ? ws->recurrence_seen[set] : 0;
}

int64_t wn_workspace_recurrence_count(const wn_workspace *ws, int64_t set, int64_t l) {
  return ws->options.recurrence > 0 ? ws->recurrence[set * ws->model->config.layers + l].count : 0;
}

void *wn_workspace_recurrence_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]) {
  const struct wn_recurrence_layer *m = &ws->recurrence[set * ws->model->config.layers + l];
  shape[0] = ws->B, shape[1] = m->rows + ws->T, shape[2] = ws->model->config.width;
  return m->states;
}

void *wn_workspace_recurrence_selections_at(const wn_workspace *ws, int64_t set, int64_t l, int64_t shape[3]) {
  const struct wn_recurrence_layer *m = &ws->recurrence[set * ws->model->config.layers + l];
  shape[0] = ws->B, shape[1] = room_selections(ws), shape[2] = m->rows + ws->T;
  return m->f;
}

void wn_workspace_recurrence_restore(wn_workspace *ws, int64_t set, int64_t seen, const int32_t *counts) {
  if (ws->options.recurrence <= 0) return;
  ws->recurrence_seen[set] = seen;
  for (int64_t l = 0; l < ws->model->config.layers; l++)
    ws->recurrence[set * ws->model->config.layers + l].count = counts[l];
}
