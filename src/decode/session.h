/* The internals of a session. Private to src/decode.
 *
 * Operations read arrays in the backend's memory. If that is not the host's, arrays named `..._shown` there get copies
 * of what the host has written: tokens and positions once per batch, control tokens once per call. Only what is asked
 * for is copied back: a drawn token (generate.c), logits (wn_session_copy_logits), counts, positions of held tokens. On
 * the host each pair is one array. */
#ifndef WN_DECODE_SESSION_H
#define WN_DECODE_SESSION_H

#include "decode/room.h"
#include "kv/cache.h"
#include "kv/policy.h"

/* What a layer's cache holds as the text grows. */
enum wn_session_kind {
  WN_LAYER_WHOLE,   /* holds everything */
  WN_LAYER_TRIMMED, /* holds what the layer can see (wn_layer_reach) */
  WN_LAYER_BUDGET   /* holds what its policy keeps; before a compression everything (session_compress.c) */
};

/* A part: key-value heads of a layer that share a cache. All heads, or neighbouring heads with the same budget. */
struct wn_session_part {
  int64_t layer, kv0, kv_heads;
  enum wn_session_kind kind;
};

/* Rows of a prompt that run as a block under a budget: enough for an efficient product, few compared with a budget. */
enum { WN_SESSION_BLOCK = 128 };

/* Keys and values of an encoder's states (session_encode.c). S 0: nothing has been encoded. */
struct wn_session_inputs {
  int64_t S;
  int32_t *count, *count_shown; /* [B] or NULL */
  char *kv;                     /* [L] of `bytes`: [B,S,2,Hkv,D] each */
  size_t bytes;
};

enum { WN_SESSION_PIECE = 256 }; /* tokens at a time: enough rows for an efficient product, few compared with a cache */
struct wn_session {
  wn_context *ctx;
  const struct wn_model *model;
  int64_t B, capacity, piece, position;
  int64_t sifted;                /* the position at which it was sifted last; 0: none */
  wn_cache_format cache;         /* how keys and values are stored; not AUTO */
  bool whole;                    /* layers with windows hold everything too, so that tokens can be taken back */
  wn_attention_config attention; /* the model's attention, with the session's own threshold */
  bool broken;                   /* a piece failed halfway: some caches have its tokens, others not */
  bool cut;                      /* taken back to a place, and nothing fed since: the last state is not known */
  bool compressed;               /* the context has ended (wn_session_compress) */
  size_t carried, peak;          /* bytes of a context's residual stream (batch.h); the most with the caches' */
  wn_budgets budgets;            /* layers 0: none */
  struct wn_pins pins;           /* of all sequences; budgets.pins */
  int64_t *reach;                /* [L] how many tokens a trimmed layer sees */
  int64_t *first;                /* [L+1] the number of each layer's first part; the last: the number of parts */
  struct wn_session_part *parts;
  struct wn_kv_cache *caches; /* one for each part */
  struct wn_session_inputs inputs;
  struct wn_arrays arrays, shared; /* in the backend's memory: the session's arrays; those that evicting caches share */
  struct wn_arrays host, shared_host; /* the same on the host */
  struct wn_room own_room, *room;     /* room is &own_room, or the group's */
  bool rounds;                        /* wn_attention.rounds: products with the weights round as well */
  bool marking, counting;             /* wn_session_options.control_marks, counts */
  bool counted;                       /* counts are up to date with the last row */
  /* with control_marks: [B,capacity] 1: the token at this position is a control token whatever its id */
  uint8_t *marks;
  int32_t *counts,
      *count_rows;          /* with counts: counts [L,B,H] of the last row; count_rows [B,H,piece] of a layer's calls */
  int32_t *count_rows_read; /* count_rows on the host */
  uint8_t *control, *control_keys; /* with a threshold and control tokens: control [B,capacity] by position;
                                      control_keys [B,Hkv,keys] of a layer's calls, without budgets [B,keys] */
  uint8_t *control_keys_shown;
  void *state;  /* [B,C] of the last position: the final norm's output */
  void *logits; /* [B,V] of the model's dtype: those of the last position, if logits_known */
  bool logits_known;
  struct wn_session_once *once;   /* (session_once.h) NULL: no method scores a whole cache */
  struct wn_session_ahead *ahead; /* (session_ahead.h) NULL: no row is computed ahead */
  struct wn_rotary rotary;        /* its own table, if the cache holds more tokens than the model's table */
  int32_t *history;               /* [B,capacity] the text so far, if its angles depend on its length; or NULL */
  bool stretched;                 /* with a history: the angles of long texts are in use */
  void *scratch; /* for steps of one token, which run in parallel with other sessions'; pieces use the room's */
  size_t scratch_bytes;

  /* For caches that evict, shared by the layers (session_attend.c). */
  bool blocks_of_rows;        /* under the budgets pieces of a prompt run as blocks (session_prefill.c) */
  bool cache_position_blocks; /* or as blocks by cache position (session_cache_positions.c) */
  int64_t largest;            /* the largest budget of a cache */
  void *sums;                 /* [B,P,largest] attention sums of a row; a part's begin at its first head's */
  double *policy_room;        /* [B,Hkv,policy_room_of_group] for the policy's choice, or NULL */
  int64_t policy_room_of_group;
  void *rotated;            /* [B,largest,Hkv,D] with cache_positions: keys rotated by their cache positions */
  int32_t *cache_positions; /* [B,largest] these positions */
  int32_t *cache_positions_shown;
};

/* Prompts are read in pieces that end at fixed places of a text, whatever follows. A session's state at a place
 * therefore has the same bits for every text that begins with the same tokens (snapshot.h). The places are 128 and the
 * multiples of 256: a smaller first piece costs little, while smaller pieces throughout would cost 4 to 13% of a
 * prompt's speed. */
int64_t wn_session_place_after(int64_t position);  /* the first place after the position */
int64_t wn_session_place_before(int64_t position); /* the last place up to the position; 0: there is none */

/* wn_session_create, of a session that holds everything (`whole`): without budgets. */
wn_status wn_session_create_whole(wn_context *ctx, wn_model *model, int64_t capacity, wn_cache_format cache,
                                  wn_session **out);
/* wn_session_kv_bytes of such a session, with the cache AUTO. */
wn_status wn_session_plan_whole(wn_context *ctx, const wn_model *model, int64_t capacity, size_t *bytes);
/* Takes back the last n tokens of such a session. In a model with selections F keeps what they selected. */
wn_status wn_session_take_back(struct wn_session *s, int64_t n);

/* Protocols other than `always` (session_compress.c). Does a full cache of the session evict tokens as they come? */
static inline bool wn_session_evicts(const struct wn_session *s) {
  return s->budgets.when == WN_WHEN_ALWAYS || (s->budgets.when == WN_WHEN_HOLD && s->compressed);
}
/* Refuses pins that leave no room under a budget (session_pins.c): under those known now, or under every layer's where
 * a context ends. */
wn_status wn_session_check_pins(wn_context *ctx, const struct wn_session *s, bool ends);
/* The tokens that each group of a part keeps in a compression; with "ada" a head's even share of them. */
int64_t wn_session_compressed_budget(const struct wn_session *s, const struct wn_session_part *part);
/* The peak, where the caches have so many bytes more beside them. */
void wn_session_count_peak(struct wn_session *s, size_t more);
/* Refuses budgets under which sequences would hold different numbers of tokens in a head, for more than one. */
wn_status wn_session_check_ragged(wn_context *ctx, const wn_budgets *budgets, int64_t sequences);
/* Compresses all parts of a layer. */
wn_status wn_session_compress_layer(struct wn_session *s, int64_t l);
/* Does the capacity of part i's cache follow what it holds? */
bool wn_session_grows(const struct wn_session *s, int64_t i);
/* "every" without a budget: what scores above a threshold goes after each so many tokens of the text; between that its
 * caches grow. */
static inline bool wn_session_sifts(const struct wn_session *s) {
  return s->budgets.when == WN_WHEN_EVERY && s->budgets.allot == WN_ALLOT_TAU;
}
/* Does it, or will it after a compression? */
static inline bool wn_session_follows(const struct wn_session *s, int64_t i) {
  const bool once = s->budgets.when == WN_WHEN_PROMPT || s->budgets.when == WN_WHEN_HOLD;
  return s->parts[i].kind == WN_LAYER_BUDGET && (once || wn_session_sifts(s));
}
/* The capacity of a growing cache of so many tokens. */
int64_t wn_session_room(const struct wn_session *s, int64_t tokens);
/* Has the session a request for wn_session_repeat_with's method? */
bool wn_session_knows_request(const struct wn_session *s);
/* Called before tokens are fed, outside of a step of the backend's memory: makes room for T more tokens of each
 * sequence, and compresses caches that are full under "every". *now (may be NULL), at most T, is reduced to what may be
 * fed at once. */
wn_status wn_session_make_room(struct wn_session *s, int64_t T, int64_t *now);
/* While scratch is measured, growing caches pretend to be as large as they may become. */
void wn_session_pretend(struct wn_session *s, bool large);
/* Moves the tokens of part i to a cache of another capacity, unless it has that one. */
wn_status wn_session_set_capacity(struct wn_session *s, int64_t i, int64_t capacity);
/* Gives caches that grow the capacities of `from`, of whose tokens they will be copies. */
wn_status wn_session_follow_capacities(struct wn_session *s, const struct wn_session *from);

/* One reading for several budgets (session_share.c). May a session with these other budgets take over what this one has
 * read, before it is compressed? Both keep all of a context, and the same notes of it. */
bool wn_session_shares_reading(const struct wn_session *s, const wn_budgets *other);
/* From now on the session also collects what sessions with the other budgets need, which must be able to share. */
wn_status wn_session_read_for(wn_context *ctx, struct wn_session *s, const wn_budgets *other);
/* Takes over the tokens of `from` (wn_session_copy of a session of one sequence with other budgets). */
wn_status wn_session_take_reading(wn_context *ctx, struct wn_session *s, const struct wn_session *from);

/* longrope (session_stretch.c). Does the session keep its text? */
bool wn_session_has_history(const struct wn_session *s);
/* Does the session use angles of its own instead of the model's? */
static inline bool wn_session_turns_itself(const struct wn_session *s) {
  return s->rotary.rows > 0 && (!s->history || s->stretched);
}
/* Called before T more tokens are fed: if the text's angles change with them, reads the text again with the new
 * angles. */
wn_status wn_session_stretch(struct wn_session *s, int64_t T);
void wn_session_reset_caches(struct wn_session *s);

/* Checks the options of a new session; *out receives its attention. */
wn_status wn_session_check_options(wn_context *ctx, const struct wn_model *model, const wn_session_options *options,
                                   wn_attention_config *out);
/* Sets up a run for a pass over T tokens of each sequence. */
void wn_session_begin(struct wn_run *run, struct wn_session *s, int64_t T);
/* The largest scratch of single tokens and of pieces. */
wn_status wn_session_measure(struct wn_session *s, size_t *step, size_t *piece);
/* _show: copies n bytes from the host to `shown` in the backend's memory, unless both are the same; _read: the other
 * way. */
wn_status wn_session_show(const struct wn_model *model, void *shown, const void *at, size_t n);
wn_status wn_session_read(const struct wn_model *model, void *to, const void *at, size_t n);
/* Copies logits [n,V] from the backend's memory to the host, as floats. */
wn_status wn_session_copy_logits(const struct wn_model *model, const void *from, int64_t n, float *to);
/* Checks whether these tokens [B,T] may be fed now. */
wn_status wn_session_check_tokens(wn_context *ctx, const struct wn_session *s, const int32_t *tokens, int64_t T,
                                  int64_t chunk);
/* Computes s->logits of the last position, unless they are known. */
wn_status wn_session_last_logits(struct wn_session *s);

void wn_session_inputs_clear(struct wn_session *s);
wn_status wn_session_inputs_count(wn_context *ctx, struct wn_session *s, const int32_t *count); /* [B] */
bool wn_session_same_threshold(const wn_attention_config *a, const wn_attention_config *b);
/* With rope scaling "dynamic": the number of positions on which the session's angles depend; 0: the angles depend on no
 * such number. */
int64_t wn_session_dynamic_rows(const struct wn_session *s);
/* Tokens that the key-value heads of a layer hold, added up. */
int64_t wn_session_held_tokens(const struct wn_session *s, int64_t layer);
/* Does the session's part i have this part and cache shape? Caches that hold everything may have any capacity. */
bool wn_session_part_agrees(const struct wn_session *s, int64_t i, const struct wn_session_part *part,
                            const struct wn_kv_shape *shape);
/* Makes the parts, the caches and what they share. model, B, capacity, piece and budgets are set before. */
wn_status wn_session_caches_init(wn_context *ctx, struct wn_session *s);
/* The share of a cache's bytes that `count` of its tokens take. */
size_t wn_session_share(size_t all, int64_t capacity, int64_t count);
/* Makes only the parts, and says what the first so many tokens would take in their caches. */
wn_status wn_session_caches_plan(wn_context *ctx, struct wn_session *s, int64_t tokens, size_t *bytes);
/* wn_session_held_bytes of a session created with these options, of which capacity is given, after so many tokens.
 * After `capacity` tokens it is wn_session_kv_bytes. */
wn_status wn_session_plan_bytes(wn_context *ctx, const struct wn_model *model, const wn_session_options *options,
                                int64_t tokens, size_t *bytes);
void wn_session_caches_clear(struct wn_session *s);
/* Are keys of this layer rotated by their cache positions when they are read? wn_layer_before then rotates nothing. */
bool wn_session_by_cache_position(const struct wn_session *s, int64_t l);
/* The attention of layer l for the run's T tokens, which enter the layer's cache. When measuring: with empty or (full)
 * full caches. */
wn_status wn_session_attend(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                            bool full);

/* The same for a single token, in parts: _begin enters it into the cache, with copies that may be left for later, and
 * says what its attention is, `row`; _end: after that. _attends_together: can they be used? */
bool wn_session_attends_together(const struct wn_session *s, int64_t l);
wn_status wn_session_attend_begin(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_layer_acts *a,
                                  struct wn_kv_later *later, struct wn_attention *row);
wn_status wn_session_attend_end(struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *row);

/* Parts of wn_session_attend. */
/* Fills the stage with the cache's tokens, in order, and then rows t0..t0+T-1. */
wn_status wn_session_stage(const struct wn_run *run, struct wn_session *s, struct wn_kv_cache *cache,
                           const struct wn_kv_rows *rows, int64_t t0, int64_t T);
/* Copies the stage's slots [B,P,n] back to the cache; slots NULL: those in the stage's slots_shown. */
wn_status wn_session_unstage(const struct wn_run *run, struct wn_session *s, const int32_t *slots, int64_t n,
                             struct wn_kv_cache *cache);
/* Can pieces of a prompt run as blocks under the budgets? And under cache positions? */
bool wn_session_takes_blocks(const struct wn_session *s);
bool wn_session_takes_cache_position_blocks(const struct wn_session *s);
wn_status wn_session_attend_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                   const struct wn_attention *op, const struct wn_kv_rows *rows);
wn_status wn_session_attend_cache_position_blocks(struct wn_run *run, struct wn_session *s, int64_t part,
                                                  const struct wn_attention *op, const struct wn_kv_rows *rows);

/* Runs the attention operation of a part of a layer. With `counts` it stores how many content tokens the last row keeps
 * (session_counts.c). */
wn_status wn_session_attention_forward(struct wn_run *run, struct wn_session *s, int64_t part,
                                       const struct wn_attention *op);

#endif
