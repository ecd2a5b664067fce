/* The internals of a generation, and the parts of its steps (generate.c), which run for one generation or for many
 * together (generate_together.c). Private to src/decode. */
#ifndef WN_DECODE_GENERATION_H
#define WN_DECODE_GENERATION_H

#include "decode/batch.h"
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
  int32_t *encoded;             /* the prompt's tokens if they were encoded here, freed with wn_tokens_free */
  int64_t prompt_count;
  bool prompted;               /* the prompt has been read */
  int32_t id;                  /* the token that is fed */
  bool ended;                  /* no step follows */
  int32_t entries, vocabulary; /* entries: ids below it are drawn; vocabulary: the tokenizer's size */
  wn_text_stream *stream;      /* NULL: no tokenizer */
  struct wn_bytes held;        /* text that has not been passed to the callback yet */
  bool apart;             /* logits stay in the backend's memory, which is not the host's, and tokens are drawn there */
  float *logits;          /* [V]; apart: the adjusted logits, in the backend's memory */
  const float *from;      /* [V] logits of the next draw, in either memory */
  struct wn_drawn drawn;  /* the last draw */
  struct wn_drawn *draws; /* [WN_SAMPLE_ROWS] apart: its place in the backend's memory, with draws of others */
  int32_t *counts;        /* [L,H] or NULL */
  int32_t *times;         /* [V] with penalties: how often a token has been drawn */
  uint8_t *seen;          /* [V] with a repetition penalty: 1: the token is in the prompt, or was drawn */
  int32_t *bias_ids;      /* [bias_count + first_count] */
  float *bias;            /* likewise */
  int64_t bias_count, first_count; /* the last first_count are for an answer's first token alone */
  /* If apart: copies of the four above in the backend's memory, and the tokens that a constraint allows [V]. */
  struct wn_arrays shown;
  int32_t *times_shown, *bias_ids_shown;
  uint8_t *seen_shown, *allowed_shown;
  float *bias_shown;
  struct wn_reading reading; /* of the prompt, if it is read layer by layer */
  struct wn_drafts *drafts;  /* (drafts.h) NULL: none */
};

/* Checks the options. _prompt: the prompt's tokens; *encoded, if it is set, is freed with wn_tokens_free. */
wn_status wn_generation_check(wn_context *ctx, const wn_model *model, const wn_generate_options *o);
wn_status wn_generation_prompt(wn_context *ctx, const wn_generate_options *o, const int32_t **prompt,
                               int64_t *prompt_count, int32_t **encoded);
/* What the generation's part of a batch feeds: the token that was taken, with at most `room` drafts after it, or one
 * piece of the prompt, up to the next fixed place (session.h). _fed: afterwards. */
wn_status wn_generation_feed(struct wn_generation *g, int32_t id, int64_t room, struct wn_feed *feed);
wn_status wn_generation_fed(struct wn_generation *g, const struct wn_feed *feed);
/* Reads a layer of a prompt that is read layer by layer; *done false: it is not. */
wn_status wn_generation_read_layer(struct wn_generation *g, bool *done);
/* Penalties and biases (penalties.c). _check: the options. _open, _close: their arrays. _adjust: sets them in the
 * operation that adjusts logits. _take: counts a token that was drawn. */
wn_status wn_penalties_check(wn_context *ctx, const wn_generate_options *o, int64_t V);
wn_status wn_penalties_open(struct wn_generation *g);
/* allowed [count]: the tokens that a constraint allows. */
wn_status wn_penalties_allow(struct wn_generation *g, const uint8_t *allowed, int32_t count, struct wn_adjust *adjust);
bool wn_penalties_adjust(const struct wn_generation *g, struct wn_adjust *out); /* false: nothing is adjusted */
wn_status wn_penalties_take(struct wn_generation *g, int32_t id);
void wn_penalties_close(struct wn_generation *g);
/* A row of the operation that draws by these rules; and the error for a bad draw, where logit is that of the token. */
struct wn_sample_row wn_sample_by(const wn_sampling *s, const float *logits, int64_t V, uint64_t step);
wn_status wn_sample_check(wn_context *ctx, const struct wn_drawn *drawn, int64_t V, float logit);
/* The steps of one token, in this order. _before: changes the logits; *over: the text has ended without another token.
 * _draw: draws for 1 to WN_SAMPLE_ROWS generations, in one call of the backend; all are `apart`, or there is one, and
 * then it may run in parallel with other generations' (ctx NULL: no message). _drawn: the token, or why there is none;
 * it may be repeated, and run in parallel. _take: the token's text, and whether the text ends; *feed: feed the token,
 * and another one follows. */
wn_status wn_generation_before(struct wn_generation *g, bool *over);
wn_status wn_generation_draw(wn_context *ctx, struct wn_generation *const *all, int64_t n);
wn_status wn_generation_drawn(wn_context *ctx, const struct wn_generation *g, int32_t *id);
wn_status wn_generation_take(struct wn_generation *g, int32_t id, bool *feed);
/* With drafts, after a token that is to be fed (*feed): while it is the next draft, takes its row and draws the token
 * after it, *id. Afterwards *feed says whether *id is to be fed, and nothing is ahead any more. */
wn_status wn_generation_follow(wn_context *ctx, struct wn_generation *g, int32_t *id, bool *feed);
/* The text has ended: passes on text that was held back, since it is no stop string. */
void wn_generation_finish(struct wn_generation *g);

#endif
