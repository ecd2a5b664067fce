/* The memory in which batches are computed (room.c). It belongs to whoever runs them: a session has a room of its own,
 * or uses its group's. Private to src/decode. */
#ifndef WN_DECODE_ROOM_H
#define WN_DECODE_ROOM_H

#include "kv/cache.h"
#include "model/workspace.h"

/* Rows that are scored together (score.c): enough for an efficient product; 12.6 MB of logits with a vocabulary of
 * 49,152. */
enum { WN_SCORING_ROWS = 64 };
struct wn_room_scoring {
  struct wn_arrays arrays, host;    /* the backend's memory, and the host's; empty until something is scored */
  void *states, *logits;            /* [rows,C], [rows,V] */
  int32_t *targets, *targets_shown; /* [rows] */
  int64_t *at;                      /* [rows] places in the caller's arrays */
  double *loss, *loss_read;         /* [rows] */
  uint8_t *hit, *hit_read;          /* [rows] */
  int64_t count;                    /* rows gathered */
};

/* What a stage has room for. R: rows of a block. */
enum wn_stage_size {
  WN_STAGE_BYTES, /* of the largest cache; and on the host: */
  WN_STAGE_HOST_BYTES,
  WN_STAGE_SLOTS,     /* B P capacity */
  WN_STAGE_EVICTIONS, /* likewise, in blocks of rows (session_prefill.c) */
  WN_STAGE_QUERIES,   /* B R H D in blocks by cache positions (session_cache_positions.c) */
  WN_STAGE_WEIGHTS,   /* B H R, and: */
  WN_STAGE_POSITIONS, /* the largest budget + R */
  WN_STAGE_SIZES
};
/* The content of a cache followed by a piece of a prompt, which caches that evict or are trimmed use in turn
 * (session_attend.c), and what goes with it. */
struct wn_room_stage {
  int64_t size[WN_STAGE_SIZES];
  struct wn_arrays arrays, host;
  struct wn_kv_cache cache; /* laid out in memory and memory_host for each cache in turn */
  void *memory, *memory_host;
  int32_t *slots, *slots_shown; /* [B,P,the stage's capacity] */
  int32_t *evicted_at;          /* likewise */
  void *q, *y;                  /* [B,R,H,D] queries for the sinks, and the output over the sinks */
  void *lse, *lse_sinks;        /* [B,H,R] */
  int32_t *positions;
};

struct wn_room {
  int64_t rows, apart; /* for so many rows at a time, and so many of them with logits that are computed together */
  struct wn_arrays arrays, host;
  struct wn_layer_blocks blocks; /* one layer's arrays, used by all in turn */
  struct wn_layer_temp temp;
  int32_t *tokens, *positions; /* [rows] */
  int32_t *tokens_shown, *positions_shown;
  int64_t *pieces; /* [rows] of struct wn_run */
  void *logits;    /* [apart,V] */
  void *scratch;
  size_t scratch_bytes;
  struct wn_room_stage stage;
  struct wn_room_scoring scoring;
};

/* Make the arrays and the scratch large enough, if they are not; pointers into them are then invalid. After a failure
 * they are as they were. A zeroed struct is an empty room. */
wn_status wn_room_fit(wn_context *ctx, const struct wn_model *model, int64_t rows, int64_t apart, struct wn_room *room);
wn_status wn_room_fit_scratch(wn_context *ctx, const struct wn_model *model, size_t bytes, struct wn_room *room);
wn_status wn_room_fit_stage(wn_context *ctx, const struct wn_model *model, const int64_t size[WN_STAGE_SIZES],
                            struct wn_room *room);
void wn_room_clear(struct wn_room *room);

#endif
