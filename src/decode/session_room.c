/* The memory in which pieces of prompts are computed: one layer's activations for a piece, which all layers use in
 * turn, and scratch. It takes about 40 bytes times width per token of a piece, 10 MB for a model of 135M: as much as a
 * cache of hundreds of tokens. A session has its own, or uses its group's (wn_session_options.group). */
#include <string.h>

#include "decode/session_room.h"

static void room_lay(const struct wn_model *m, int64_t B, int64_t piece, struct wn_session_room *room) {
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(room->blocks.large, 1, "activations", true, WN_DIMS((int64_t)room->blocks.large_bytes)),
      WN_ARRAY_SIZED(room->blocks.derived, 1, "derived activations", true,
                     WN_DIMS((int64_t)room->blocks.derived_bytes)),
      WN_ARRAY_SIZED(room->blocks.exact, 1, "exact activations", true, WN_DIMS((int64_t)room->blocks.exact_bytes)),
  };
  WN_ARRAYS_LAY(&room->arrays, rows);
  wn_layer_temp_lay(&m->config, wn_layer_types_of(m->dtype), B, piece, false, false, &room->arrays, &room->temp);
}

wn_status wn_session_room_fit(wn_context *ctx, const struct wn_model *model, int64_t B, int64_t piece,
                              struct wn_session_room *room) {
  struct wn_session_room wider = {.B = B > room->B ? B : room->B, .piece = piece > room->piece ? piece : room->piece};
  struct wn_layer_acts acts;
  int64_t M;
  if (wider.B == room->B && wider.piece == room->piece) return WN_OK;
  if (__builtin_mul_overflow(wider.B, wider.piece, &M) || M > INT32_MAX ||
      !wn_layer_acts_plan(&model->config, wn_layer_types_of(model->dtype), wider.B, wider.piece, false, &wider.blocks,
                          &acts))
    return wn_fail(ctx, WN_ERR_ARGUMENT, "session of %lld sequences: too many tokens per step", (long long)wider.B);
  wider.arrays.memory = model->backend->memory;
  room_lay(model, wider.B, wider.piece, &wider);
  WN_TRY(wn_arrays_check(ctx, &wider.arrays, "session of %lld sequences", (long long)wider.B));
  WN_TRY(wn_arrays_allocate(ctx, &wider.arrays, "pieces of prompts"));
  room_lay(model, wider.B, wider.piece, &wider);
  wider.scratch = room->scratch;
  wider.scratch_bytes = room->scratch_bytes;
  wn_arrays_clear(&room->arrays);
  *room = wider;
  return WN_OK;
}

wn_status wn_session_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes,
                                      struct wn_session_room *room) {
  void *memory;
  if (bytes <= room->scratch_bytes) return WN_OK;
  WN_TRY(model->backend->memory->allocate(ctx, "scratch of a session", bytes, &memory));
  model->backend->memory->release(room->scratch);
  room->scratch = memory;
  room->scratch_bytes = bytes;
  return WN_OK;
}

void wn_session_room_clear(struct wn_session_room *room) {
  if (room->arrays.memory) room->arrays.memory->release(room->scratch);
  wn_arrays_clear(&room->arrays);
  *room = (struct wn_session_room){0};
}
