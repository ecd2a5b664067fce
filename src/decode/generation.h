/* A generation's inside, and the parts of its steps (generate.c), which run alone or for many together
 * (generate_together.c). Private to src/decode. */
#ifndef WN_DECODE_GENERATION_H
#define WN_DECODE_GENERATION_H

#include "decode/session.h"
#include "ops/sample.h"
#include "text/normalize.h"
#include "winnow/generate.h"

struct wn_generation {
  wn_context *ctx;
  struct wn_session *session;
  wn_generate_options own;
  wn_generate_result result;
  const wn_generate_options *o; /* &own */
  wn_generate_result *r;        /* &result */
  const int32_t *prompt;        /* [prompt_count] */
  int32_t *encoded;             /* the prompt's tokens where they were made here, freed with wn_tokens_free */
  int64_t prompt_count;
  bool prompted;               /* the prompt has been read */
  int32_t entries, vocabulary; /* ids below `entries` are drawn; the tokenizer's */
  wn_text_stream *stream;      /* NULL: no tokenizer */
  struct wn_bytes held;        /* text that has not been handed out */
  bool apart;                  /* tokens are drawn where the logits lie, which is not the host's memory */
  float *logits;               /* [V]; apart: adjusted ones, in the backend's memory */
  struct wn_drawn *drawn;      /* the last draw, in the backend's memory; what has been read of it: */
  struct wn_drawn drawn_read;
  int32_t *counts;   /* [L,H] or NULL */
  int32_t *times;    /* [V] with penalties: how often a token has been drawn */
  uint8_t *seen;     /* [V] with a repetition penalty: it is in the prompt, or drawn */
  int32_t *bias_ids; /* [bias_count] */
  float *bias;       /* the same */
  /* Apart, in the backend's memory: the four above, and what a constraint allows [V]. */
  struct wn_arrays shown;
  int32_t *times_shown, *bias_ids_shown;
  uint8_t *seen_shown, *allowed_shown;
  float *bias_shown;
};

/* One piece of the prompt, up to the next place. */
wn_status wn_generation_read(struct wn_generation *g);
/* Penalties and biases (penalties.c): checked, made room for, put into what adjusts the logits, and told of a token of
 * the prompt or a drawn one. */
wn_status wn_penalties_check(wn_context *ctx, const wn_generate_options *o, int64_t V);
wn_status wn_penalties_open(struct wn_generation *g);
/* allowed [count], of a constraint. */
wn_status wn_penalties_allow(struct wn_generation *g, const uint8_t *allowed, int32_t count, struct wn_adjust *adjust);
bool wn_penalties_adjust(const struct wn_generation *g, struct wn_adjust *out); /* false: nothing is adjusted */
wn_status wn_penalties_take(struct wn_generation *g, int32_t id);
void wn_penalties_close(struct wn_generation *g);
/* The draw of a token by these rules, and what is wrong with one; logit: that of its token. */
struct wn_sample wn_sample_by(const wn_sampling *s, const float *logits, int64_t V, uint64_t step,
                              struct wn_drawn *drawn);
wn_status wn_sample_check(wn_context *ctx, const struct wn_drawn *drawn, int64_t V, float logit);
/* A token, in this order: what changes the logits before it is drawn; the draw, which may be repeated and, where it is
 * not apart, runs beside those of other generations (ctx NULL: no message); its text and ends. *over: the text has
 * ended without a token. *feed: it is to be fed to the session, and then g->r->unfed is -1 again and another token
 * follows. */
wn_status wn_generation_before(struct wn_generation *g, bool *over);
wn_status wn_generation_draw(wn_context *ctx, struct wn_generation *g, int32_t *id);
wn_status wn_generation_take(struct wn_generation *g, int32_t id, bool *feed);
/* The text has ended: what was held back is no stop string after all. */
void wn_generation_finish(struct wn_generation *g);

#endif
