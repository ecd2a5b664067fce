/* One layer's activations, which all layers use in turn, what the host says of the rows, and scratch. They take about
 * 40 bytes times width per row, 10 MB for a piece of a prompt and a model of 135M: as much as a cache of hundreds of
 * tokens. */
#include "decode/room.h"

/* Allocates both, or none. */
static wn_status room_allocate(wn_context *ctx, struct wn_arrays *arrays, struct wn_arrays *host) {
  WN_TRY(wn_arrays_allocate(ctx, arrays, "a batch"));
  const wn_status status = wn_arrays_allocate(ctx, host, "a batch");
  if (status != WN_OK) wn_arrays_clear(arrays);
  return status;
}

static void room_lay(const struct wn_model *m, struct wn_room *room) {
  const wn_model_config *c = &m->config;
  const int64_t rows = room->rows;
  const bool apart = !m->backend->memory->host;
  const struct wn_array of[] = {
      WN_ARRAY_SIZED(room->blocks.large, 1, "activations", true, WN_DIMS((int64_t)room->blocks.large_bytes)),
      WN_ARRAY_SIZED(room->blocks.derived, 1, "derived activations", true,
                     WN_DIMS((int64_t)room->blocks.derived_bytes)),
      WN_ARRAY_SIZED(room->blocks.exact, 1, "exact activations", true, WN_DIMS((int64_t)room->blocks.exact_bytes)),
      WN_ARRAY_SIZED(room->tokens_shown, sizeof *room->tokens, "tokens shown", apart, WN_DIMS(rows)),
      WN_ARRAY_SIZED(room->positions_shown, sizeof *room->positions, "positions shown", apart, WN_DIMS(rows)),
      WN_ARRAY_SIZED(room->logits, wn_dtype_size(m->dtype), "logits", true, WN_DIMS(room->apart, c->vocab_size)),
  };
  const struct wn_array host[] = {
      WN_ARRAY_FOR(room->tokens, "tokens", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(room->positions, "positions", true, WN_DIMS(rows)),
      WN_ARRAY_FOR(room->pieces, "pieces", true, WN_DIMS(rows)),
  };
  WN_ARRAYS_LAY(&room->arrays, of);
  WN_ARRAYS_LAY(&room->host, host);
  if (!apart) room->tokens_shown = room->tokens, room->positions_shown = room->positions;
  wn_layer_temp_lay(c, wn_layer_types_of(m->dtype), 1, rows, false, false, &room->arrays, &room->temp);
}

wn_status wn_room_fit(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart,
                      struct wn_room *room) {
  struct wn_room wider = {.rows = rows > room->rows ? rows : room->rows,
                          .apart = apart > room->apart ? apart : room->apart};
  struct wn_layer_acts acts;
  if (wider.rows == room->rows && wider.apart == room->apart) return WN_OK;
  if (wider.rows > INT32_MAX ||
      !wn_layer_acts_plan(&model->config, wn_layer_types_of(model->dtype), 1, wider.rows, false, &wider.blocks, &acts))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "a batch of %lld rows does not fit in memory", (long long)rows);
  wider.arrays.memory = model->backend->memory;
  room_lay(model, &wider);
  WN_TRY(room_allocate(ctx, &wider.arrays, &wider.host));
  room_lay(model, &wider);
  wider.scratch = room->scratch;
  wider.scratch_bytes = room->scratch_bytes;
  wider.stage = room->stage;
  wider.scoring = room->scoring;
  wn_arrays_clear(&room->arrays);
  wn_arrays_clear(&room->host);
  *room = wider;
  return WN_OK;
}

wn_status wn_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes, struct wn_room *room) {
  void *memory;
  if (bytes <= room->scratch_bytes) return WN_OK;
  WN_TRY(model->backend->memory->allocate(ctx, "scratch of a batch", bytes, &memory));
  model->backend->memory->release(room->scratch);
  room->scratch = memory;
  room->scratch_bytes = bytes;
  return WN_OK;
}

static void stage_lay(const struct wn_model *m, struct wn_room_stage *x) {
  const int64_t *n = x->size;
  const size_t e = wn_dtype_size(m->dtype);
  const bool apart = !m->backend->memory->host;
  const struct wn_array host[] = {
      WN_ARRAY_SIZED(x->memory_host, 1, "stage", true, WN_DIMS(n[WN_STAGE_HOST_BYTES])),
      WN_ARRAY_FOR(x->slots, "slots", true, WN_DIMS(n[WN_STAGE_SLOTS])),
      WN_ARRAY_FOR(x->positions, "cache positions of a block", true, WN_DIMS(n[WN_STAGE_POSITIONS])),
  };
  const struct wn_array of[] = {
      WN_ARRAY_SIZED(x->memory, 1, "stage", true, WN_DIMS(n[WN_STAGE_BYTES])),
      WN_ARRAY_SIZED(x->slots_shown, sizeof *x->slots, "slots shown", apart, WN_DIMS(n[WN_STAGE_SLOTS])),
      WN_ARRAY_FOR(x->evicted_at, "evictions of a block", true, WN_DIMS(n[WN_STAGE_EVICTIONS])),
      WN_ARRAY_SIZED(x->q, e, "queries of the sinks", true, WN_DIMS(n[WN_STAGE_QUERIES])),
      WN_ARRAY_SIZED(x->y, e, "outputs of the sinks", true, WN_DIMS(n[WN_STAGE_QUERIES])),
      WN_ARRAY_SIZED(x->lse, e, "weights of the recent", true, WN_DIMS(n[WN_STAGE_WEIGHTS])),
      WN_ARRAY_SIZED(x->lse_sinks, e, "weights of the sinks", true, WN_DIMS(n[WN_STAGE_WEIGHTS])),
  };
  WN_ARRAYS_LAY(&x->host, host);
  WN_ARRAYS_LAY(&x->arrays, of);
  if (!apart) x->slots_shown = x->slots;
}

wn_status wn_room_fit_stage(wn_context *ctx, const struct wn_model *model, const int64_t size[WN_STAGE_SIZES],
                            struct wn_room *room) {
  struct wn_room_stage wider = {.arrays = {.memory = model->backend->memory}};
  bool fits = true;
  for (int i = 0; i < WN_STAGE_SIZES; i++) {
    wider.size[i] = size[i] > room->stage.size[i] ? size[i] : room->stage.size[i];
    fits = fits && wider.size[i] == room->stage.size[i];
  }
  if (fits) return WN_OK;
  stage_lay(model, &wider);
  WN_TRY(room_allocate(ctx, &wider.arrays, &wider.host));
  stage_lay(model, &wider);
  wn_arrays_clear(&room->stage.arrays);
  wn_arrays_clear(&room->stage.host);
  room->stage = wider;
  return WN_OK;
}

void wn_room_clear(struct wn_room *room) {
  if (room->arrays.memory) room->arrays.memory->release(room->scratch);
  wn_arrays_clear(&room->arrays);
  wn_arrays_clear(&room->host);
  wn_arrays_clear(&room->stage.arrays);
  wn_arrays_clear(&room->stage.host);
  wn_arrays_clear(&room->scoring.arrays);
  wn_arrays_clear(&room->scoring.host);
  *room = (struct wn_room){0};
}
