/* What a session collects for methods that score a whole cache (kv/once.h), and their calls. Private to src/decode. */
#ifndef WN_DECODE_SESSION_ONCE_H
#define WN_DECODE_SESSION_ONCE_H

#include "decode/session.h"
#include "kv/keep.h"
#include "kv/once.h"

/* Scores of a context that several sessions take over: the first to need them computes them for all. */
struct wn_session_scores {
  int users;
  int64_t n;                /* tokens of the context */
  size_t echo;              /* bytes of the cache that repeated it */
  double *scores, *norms;   /* [L,Hkv,n] of the method; of projected values */
  bool *scored, *projected; /* [L] which are known */
  struct wn_arrays arrays;
};

/* What is collected for one method. */
struct wn_session_collected {
  const struct wn_once_method *method; /* NULL: the policy scores */
  struct wn_once_options options;
  struct wn_once_seen **seen;        /* [L,B], each NULL if the method collects nothing */
  struct wn_session_scores *known;   /* of what has been read, or NULL */
  struct wn_session_collected *next; /* for sessions of other methods that will take over this one's reading */
};

struct wn_session_repeat;
enum { WN_REPEAT_PARTS = 3 }; /* of KVzip's request: for the first chunk, for later ones, before the chunk's tokens */

struct wn_session_once {
  struct wn_session_collected own;
  bool joined;          /* others will take over this one's reading */
  struct wn_rope *rope; /* [L] the layers' rotations */
  double *frequencies;  /* [L,D] of these rotations */
  double *scale;        /* [L] the factor on logits */
  int32_t *at;          /* [piece] */
  float *q, *k;         /* [piece,H,D], [piece,Hkv,D] */
  int32_t *text;        /* [B,capacity] what was read */
  int32_t *request[WN_REPEAT_PARTS];
  int64_t requests[WN_REPEAT_PARTS];
  /* session_repeat.c, which reads through sessions: a second reading, before a compression, known with the request; and
   * in the session that reads, an echo, what its rows are compared with and by what: T rows of layer l, whose queries
   * and keys stand in q and k. Else NULL. */
  wn_status (*again)(struct wn_session *s);
  wn_status (*compare)(struct wn_session *echo, int64_t l, int64_t T);
  struct wn_session_repeat *repeat;
  double *largest;   /* [L,Hkv,n] while a context that was repeated is compressed */
  int64_t *allotted; /* [L,Hkv] with "model": how many tokens each head keeps */
  struct wn_arrays arrays;
};
/* Sets s->once. */
wn_status wn_session_once_open(wn_context *ctx, struct wn_session *s);
/* Sets it, if the budgets need it. */
wn_status wn_session_once_create(wn_context *ctx, struct wn_session *s);
/* Collects what the method of other budgets needs, too. */
wn_status wn_session_once_join(wn_context *ctx, struct wn_session *s, const wn_budgets *other);
/* Sequence b takes over what sequence `source` of `from` has collected for the session's method. */
wn_status wn_session_once_copy(wn_context *ctx, struct wn_session *s, int64_t b, const struct wn_session *from,
                               int64_t source);
void wn_session_once_destroy(struct wn_session *s);
void wn_session_once_reset(struct wn_session *s);
/* Collects what a piece's attention call on layer l shows. */
wn_status wn_session_once_see(const struct wn_run *run, struct wn_session *s, int64_t l, const struct wn_attention *op,
                              const struct wn_kv_rows *rows);
/* Scores n parts of layer l that hold equally many tokens, where each head keeps K on average: with the budgets' method
 * in the policy's place, then how many tokens each head keeps ("ada"), then by the values' projections ("critical"). */
wn_status wn_session_once_score(struct wn_session *s, int64_t l, int64_t K, struct wn_kept *keep, int64_t n);

/* Does the method ask for a second reading of the context (KVzip)? */
bool wn_session_once_repeats(const struct wn_session *s);
/* Reads the context again where the method asks for it (KVzip); then frees what that has left. */
wn_status wn_session_once_again(struct wn_session *s);
void wn_session_once_finish(struct wn_session *s);
/* The request as tokens, which are copied. */
wn_status wn_session_repeat_ids(wn_context *ctx, struct wn_session *s, int32_t *const ids[WN_REPEAT_PARTS],
                                const size_t counts[WN_REPEAT_PARTS]);

#endif
