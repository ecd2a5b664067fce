/* A session's inside: private to src/decode.
 *
 * What operations are given lies in the backend's memory. Where that is not the host's, `shown` arrays there get what
 * the host has written: tokens and positions once a piece, control tokens once a call. What comes back is what somebody
 * asks for: a drawn token (generate.c), logits (wn_session_copy_logits), counts, positions of what is held. On the host
 * all of these are the same arrays. */
#ifndef WN_DECODE_SESSION_H
#define WN_DECODE_SESSION_H

#include "decode/session_room.h"
#include "kv/cache.h"
#include "kv/policy.h"

/* What a cache does as the text grows. */
enum wn_session_kind {
  WN_LAYER_WHOLE,   /* holds everything */
  WN_LAYER_TRIMMED, /* holds what the layer can see (wn_layer_reach): the rest would never be looked at again */
  WN_LAYER_BUDGET   /* holds what its policy keeps */
};

/* Key-value heads of a layer that share a cache: all of them, or a run of heads with the same budget. */
struct wn_session_part {
  int64_t layer, kv0, kv_heads;
  enum wn_session_kind kind;
};

/* Rows of a prompt that run as a block under a budget: enough for a product, few compared with a budget. */
enum { WN_SESSION_BLOCK = 128 };
struct wn_session_block {
  int32_t *evicted_at; /* [B,P,stage's capacity] */
};

/* The same where tokens are rotated by their cache positions (session_cache_positions.c). */
struct wn_session_cache_positions {
  void *q, *y;           /* [B,rows,H,D] queries of the sinks, and what the sinks give */
  void *lse, *lse_sinks; /* [B,H,rows] */
  int32_t *positions;    /* [the largest budget + rows] */
};

/* Keys and values of an encoder's states (session_encode.c). S 0: nothing has been encoded. */
struct wn_session_inputs {
  int64_t S;
  int32_t *count, *count_shown; /* [B] or NULL */
  char *kv;                     /* [L] of `bytes`: [B,S,2,Hkv,D] each */
  size_t bytes;
};

struct wn_session {
  wn_context *ctx;
  const struct wn_model *model;
  int64_t B, capacity, piece, position;
  bool half;                     /* keys and values are kept in half floats */
  wn_attention_config attention; /* the model's, with the session's own threshold */
  bool broken;                   /* a piece failed half way: some caches have its tokens */
  wn_budgets budgets;            /* layers 0: none */
  int64_t *reach;                /* [L] tokens of a trimmed layer: what it sees */
  int64_t *first;                /* [L+1] each layer's first part; the last: how many there are */
  struct wn_session_part *parts;
  struct wn_kv_cache *caches; /* of the parts */
  struct wn_session_inputs inputs;
  struct wn_arrays arrays, shared;        /* the session's own; what caches that evict share: the backend's memory */
  struct wn_arrays host, shared_host;     /* and the host's */
  struct wn_session_room own_room, *room; /* where its pieces are computed: the own one, or its group's */
  int32_t *tokens, *positions;            /* [B,piece] */
  int32_t *tokens_shown, *positions_shown;
  bool marking, counting;          /* wn_session_options.control_marks, counts */
  bool counted;                    /* counts are those of the last row */
  uint8_t *marks;                  /* with control_marks: [B,capacity] 1: will be a control token whatever its id */
  int32_t *counts, *count_rows;    /* with counts: [L,B,H] of the last row; [B,H,piece] of a layer's calls */
  int32_t *count_rows_read;        /* the latter on the host */
  uint8_t *control, *control_keys; /* with a threshold and control tokens: [B,capacity] by position; [B,Hkv,keys] of a
                                            layer's calls, without budgets [B,keys] */
  uint8_t *control_keys_shown;
  void *mid, *branch;  /* [B,C] the last position's, as in struct wn_session_rows */
  void *x_out, *n_out; /* [B,C] */
  void *rstd, *mean;   /* [B] */
  void *logits;        /* [B,V] of the model's dtype: the last position's, once they are known */
  bool logits_known;
  struct wn_session_scoring *scoring; /* NULL until something is scored (score.c) */
  struct wn_rotary rotary;            /* own, where the cache holds more than the model's table */
  int32_t *history;                   /* [B,capacity] the text so far, where its angles depend on its length; or NULL */
  bool stretched;                     /* with a history: its angles are those of long texts */
  void *scratch; /* of steps of one token, which run beside other sessions'; pieces have the room's */
  size_t scratch_bytes;

  /* For caches that evict, shared by the layers (session_attend.c). */
  struct wn_kv_cache stage; /* what a cache holds and then a piece, laid out for each cache in stage_memory */
  void *stage_memory, *stage_host;
  int32_t *slots, *slots_shown; /* [B,P,stage's capacity] */
  bool blocks_of_rows;          /* under the budgets a piece of a prompt runs as blocks (session_prefill.c) */
  bool cache_position_blocks;   /* or as blocks by cache position (session_cache_positions.c) */
  struct wn_session_block block;
  struct wn_session_cache_positions cache_position_block;
  int64_t largest;          /* budget of a cache */
  void *sums;               /* [B,P,the largest budget]; attention sums of a row; of a part, from its first head's on */
  void *room_of_votes;      /* the same of 8 bytes, of a policy that wants slots in order of position */
  void *rotated;            /* [B,the largest budget,Hkv,D], with cache_positions: keys rotated by them */
  int32_t *cache_positions; /* [B,the largest budget], the same */
  int32_t *cache_positions_shown;
};

/* Prompts are read in pieces that end at fixed places of a text, whatever follows: the state of a session at a place is
 * then, to the bit, that of every text which begins with the same tokens (snapshot.h). The places are 128 and the
 * multiples of 256: a smaller first piece costs little, smaller pieces throughout 4 to 13% of a prompt's speed. */
int64_t wn_session_place_after(int64_t position);  /* the first place beyond it */
int64_t wn_session_place_before(int64_t position); /* the last place up to it; 0: there is none */

/* longrope (session_stretch.c). Does a session of this model and capacity keep its text? */
bool wn_session_has_history(const struct wn_session *s);
/* Are its angles its own, and not the model's? */
bool wn_session_turns_itself(const struct wn_session *s);
void wn_session_note_history(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T);
/* Before T more tokens: where the text's angles change with them, it is read again with the others. */
wn_status wn_session_stretch(struct wn_session *s, int64_t T);
void wn_session_reset_caches(struct wn_session *s);

/* What the layers give: the residual stream, and the last branch, which is still to be added to it. */
struct wn_session_rows {
  const void *mid, *branch; /* [B,T,C] */
};
/* Notes the next T tokens of each sequence: tokens [B,stride], of which the first T of each row. */
wn_status wn_session_take_tokens(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T);
/* Can there be such a session? Its attention goes to *out. */
wn_status wn_session_check_options(wn_context *ctx, const struct wn_model *model, const wn_session_options *options,
                                   wn_attention_config *out);
/* A pass over T tokens of each sequence, before anything of it runs. */
void wn_session_begin(struct wn_run *run, struct wn_session *s, int64_t T);
/* n bytes that operations are to read at `shown` go there, unless it is where they are; and the way back. */
wn_status wn_session_show(const struct wn_model *model, void *shown, const void *at, size_t n);
wn_status wn_session_read(const struct wn_model *model, void *to, const void *at, size_t n);
/* The last position's logits [n,V] as floats: here they leave the backend's memory. */
wn_status wn_session_copy_logits(const struct wn_model *model, const void *from, int64_t n, float *to);
/* May these tokens [B,T] be fed now? */
wn_status wn_session_check_tokens(wn_context *ctx, const struct wn_session *s, const int32_t *tokens, int64_t T,
                                  int64_t chunk);
/* Feeds T tokens per sequence, at most a piece: tokens [B,stride], of which the first T of each row. */
wn_status wn_session_feed_piece(struct wn_session *s, const int32_t *tokens, int64_t stride, int64_t T,
                                struct wn_session_rows *rows);
/* s->logits of the last position, unless they are known. */
wn_status wn_session_last_logits(struct wn_session *s);
void wn_session_scoring_destroy(struct wn_session_scoring *scoring); /* NULL is allowed */

void wn_session_inputs_clear(struct wn_session *s);
wn_status wn_session_inputs_count(wn_context *ctx, struct wn_session *s, const int32_t *count); /* [B] */
bool wn_session_same_threshold(const wn_attention_config *a, const wn_attention_config *b);
/* The rows of angles that its keys are turned by, on which "dynamic" scaling depends; 0: any will do. */
int64_t wn_session_dynamic_rows(const struct wn_session *s);
/* Is the session's part i, and its cache, like these? Caches that hold everything may have any length. */
bool wn_session_part_agrees(const struct wn_session *s, int64_t i, const struct wn_session_part *part,
                            const struct wn_kv_shape *shape);
/* Parts, caches and what they share; model, B, capacity, piece and budgets are set. */
wn_status wn_session_caches_init(wn_context *ctx, struct wn_session *s);
void wn_session_caches_clear(struct wn_session *s);
/* Keys of this layer are rotated by their cache positions, when they are used: wn_layer_before rotates nothing. */
bool wn_session_by_cache_position(const struct wn_session *s, int64_t l);
/* The attention of layer l over its cache, for the run's T tokens, which enter it. When measuring: as if the caches
 * were empty, or full. */
wn_status wn_session_attend(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                            bool full);

/* Parts of it. */
/* The stage holds, in order, what the cache holds, and then rows t0..t0+T-1. */
wn_status wn_session_stage(const struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                           const struct wn_kv_rows *rows, int64_t t0, int64_t T);
/* The cache holds the stage's slots [B,P,n]; NULL: those in s->slots_shown. */
wn_status wn_session_unstage(const struct wn_run *run, struct wn_session *s, const int32_t *slots, int64_t n,
                             struct wn_kv_cache *cache);
/* May pieces of a prompt run as blocks under the budgets? */
bool wn_session_takes_blocks(const struct wn_session *s);
wn_status wn_session_attend_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                   const struct wn_attention *op, const struct wn_kv_rows *rows);
bool wn_session_takes_cache_position_blocks(const struct wn_session *s);
wn_status wn_session_attend_cache_position_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                                  const struct wn_attention *op, const struct wn_kv_rows *rows);

/* The operation of a part of a layer; notes how many content tokens the last row keeps, where that is asked for
 * (session_counts.c). */
wn_status wn_session_attention_forward(struct wn_run *run, struct wn_session *s, int64_t part,
                                       const struct wn_attention *op);

#endif
