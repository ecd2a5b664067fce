/* winnow: generating text. One call feeds a prompt, draws tokens until the text ends, and passes each token's text to a
 * callback. */
#ifndef WINNOW_GENERATE_H
#define WINNOW_GENERATE_H

#include "winnow/constraint.h"
#include "winnow/kv.h"
#include "winnow/session_group.h"

WN_STABLE_BEGIN

/* The reason why a text ended. */
typedef enum wn_generate_end {
  WN_GENERATE_LENGTH,   /* "length": max_tokens were drawn */
  WN_GENERATE_EOS,      /* "end": an end token of the tokenizer or the model, or one of stop_tokens, was drawn */
  WN_GENERATE_STOP,     /* "stop": one of stop_strings was written */
  WN_GENERATE_CONTEXT,  /* "context": the session has no room for the last drawn token */
  WN_GENERATE_CANCELLED /* "interrupt": wn_context_cancel was called, or the callback returned false */
} wn_generate_end;
#define WN_GENERATE_END_COUNT 5
const char *wn_generate_end_name(wn_generate_end end);

/* The text that one token adds. */
typedef struct wn_generate_piece {
  int64_t index; /* of the token, from 0 */
  /* -1: the last call, with no token but with text that was held back and turned out not to be a stop string */
  int32_t id;
  const char *text;       /* [bytes] whole characters of UTF-8, borrowed for the call, not NUL-terminated */
  size_t bytes;           /* 0 where a character is not complete yet, or a stop string may have begun */
  double log_probability; /* with log_probabilities: natural logarithm of the token's probability, before temperature,
                             top-k, top-p and min-p, after penalties and biases, among the tokens that a constraint
                             allows */
  const int32_t *counts;  /* with counts: [layers, heads] content tokens that the threshold kept for the row that the
                             token was drawn from (wn_session_counts); else NULL */
  int64_t context,
      content; /* with counts: tokens up to this row, evicted ones included, and the content tokens among them */
  size_t held; /* bytes that follow `text` and are held back, because they are or may become a stop string */
} wn_generate_piece;

/* A number that is added to the logit of one token before each draw; -INFINITY: it is never drawn. A bias for a token
 * that the model suppresses takes the place of that. */
typedef struct wn_logit_bias {
  int32_t id;
  float bias;
} wn_logit_bias;

/* The prompt, the sampling and the end of a text; wn_generate_options_init sets the defaults. */
typedef struct wn_generate_options {
  size_t size; /* sizeof the struct (context.h) */

  /* The prompt: at least one token, or a text for the tokenizer (wn_prompt_encode). Borrowed. */
  const int32_t *prompt; /* [prompt_count]; NULL: text */
  int64_t prompt_count;
  const char *text; /* [bytes] */
  size_t bytes;
  const int32_t *inputs; /* [input_count] the encoder's input of an encoder-decoder; else NULL */
  int64_t input_count;

  const wn_tokenizer *tok; /* NULL: only tokens, without text and stop strings */
  wn_sampling sampling;    /* defaults of wn_sampling_init */
  uint64_t first_step;     /* token i is drawn with sampling step first_step + i; 0 */
  int32_t vocab_size;      /* ids below it are drawn; 0: the tokenizer's, without one the model's */

  int64_t max_tokens;         /* 256; 0: only feeds the prompt */
  bool ignore_end;            /* continue after the tokenizer's and the model's end tokens, but not after stop_tokens */
  const int32_t *stop_tokens; /* [stop_token_count] other tokens that end the text and are not part of it */
  int stop_token_count;
  const char *const *stop_strings; /* [stop_string_count] UTF-8, not empty: the text ends before the first of them,
                                      however it is tokenized. Text that may be the beginning of one is held back */
  int stop_string_count;

  const int32_t *text_before; /* [text_before_count] tokens of the text before the generated one; with them a tokenizer
                                 that drops the space at the beginning of a text keeps it here. NULL: a new text */
  int64_t text_before_count;
  bool log_probabilities;
  int32_t *drawn; /* [max_tokens] receives the tokens; NULL: not wanted */

  /* Callbacks, each NULL or called by the calling thread. */
  bool (*piece)(void *user, const wn_generate_piece *piece); /* called once per token; false ends the generation */
  void (*logits)(void *user, int64_t index, float *logits, int64_t V); /* called before a token is drawn; may change the
                                                                          logits [V] */
  const char *(*text_of)(void *user, int32_t id, size_t *bytes); /* the text (UTF-8) of an id outside the tokenizer,
                                                                    valid until the next call, or NULL; without the
                                                                    callback such ids have no text */
  void *user;

  /* For wn_generate, which creates the session. */
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  wn_cache_format cache;     /* WN_CACHE_AUTO */

  /* made with the same tokenizer: only tokens that it allows are drawn, until the text is complete or max_tokens cuts
   * it off. The generation resets it and owns it until the end. NULL: none */
  wn_constraint *constraint;

  const uint8_t *control; /* [prompt_count] 1: this token is a control token for the threshold, whatever its id says;
                             needs `prompt`, and a session made with control_marks. NULL: ids alone decide */
  bool counts;            /* pieces have counts; needs a threshold, and a session made with counts */
  /* What changes the logits before a token is drawn, in this order and before the callback. */
  double repetition_penalty; /* 0.01 to 100: the logits of the tokens in `repeated` and of those drawn so far are
                                divided by it where they are positive, else multiplied (Keskar et al. 2019); 1, the
                                default, and 0: off */
  const int32_t *repeated;   /* [repeated_count] of the model's vocabulary; NULL: the prompt */
  int64_t repeated_count;
  double presence_penalty;     /* subtracted from the logits of tokens that have been drawn (OpenAI's definition) */
  double frequency_penalty;    /* subtracted once for each time that the token has been drawn */
  const wn_logit_bias *biases; /* [bias_count] added; NULL: none */
  int bias_count;

  /* Drafts: each step guesses so many tokens from what followed earlier in the text, and computes their rows together
   * with the drawn token's. The text is the same, to the bit, with drafts and without; where guesses are right it comes
   * faster. 0, the default: none; at most WN_DRAFT_MAX. Without effect where a token would be evicted or
   * tokens are counted. */
  int draft_tokens;
  const int32_t *draft_text; /* [draft_text_count] the text before the first drawn token; NULL: the prompt */
  int64_t draft_text_count;
  wn_model *draft_model; /* guesses greedily where nothing earlier in the text says what may follow: a small decoder
                            with the same vocabulary, of the same context. It keeps a cache of its own and reads the
                            whole text, when it first guesses. NULL: lookup alone */
} wn_generate_options;
#define WN_DRAFT_MAX 32
void wn_generate_options_init(wn_generate_options *options, size_t size); /* size: sizeof *options */
/* Sets the sampling that the model declares (wn_model_declared) where it declares any: between _init and a user's own
 * settings. `options` must be of this header's size. */
void wn_generate_options_declared(const wn_model *model, wn_generate_options *options);

/* The result of a generation. */
typedef struct wn_generate_result {
  wn_generate_end end;
  int64_t prompt_tokens; /* tokens of the prompt that were fed: all, unless cancelled */
  int64_t tokens;        /* tokens drawn, without the end token */
  uint64_t steps;        /* sampling steps used: one per token, and one for an end token */
  int32_t end_token;     /* the token that ended the text; -1: none */
  int32_t unfed;         /* the last token if it was not fed to the session, to begin the next prompt with; -1: it was
                            fed */
  double prompt_seconds, token_seconds;
  int64_t drafted, accepted; /* tokens guessed (draft_tokens), and those that were drawn */
  uint64_t reserved[8];      /* 0: room for what later versions add */
} wn_generate_result;

/* The tokens of a text for a model to continue. They begin with the token that begins a text, if the tokenizer has one;
 * if it has none, an empty text is replaced by a newline. *ids is freed with wn_tokens_free. */
wn_status wn_prompt_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, int32_t **ids,
                           size_t *count);

/* Generates in a session of one sequence, after the tokens fed so far. result may be NULL and is written with any
 * status. wn_context_cancel, from a signal or another thread, ends it at the next token or piece of the prompt with
 * WN_OK and result->end; the request stays until wn_context_resume. A prompt that is read layer by layer
 * (wn_session_read_context) ends at the next layer, and the session is as before. WN_ERR_DIVERGED: a logit is NaN. No
 * allocation per token. */
wn_status wn_session_generate(wn_context *ctx, wn_session *session, const wn_generate_options *options,
                              wn_generate_result *result);
/* The same step by step, for programs that generate several texts in turn. A step reads a piece of the prompt, or a
 * layer, or draws one token, and with drafts those that were guessed; *more false: the text has ended, and further
 * steps do nothing. Until wn_generation_destroy the options' pointers stay borrowed and the session belongs to the
 * generation. wn_generation_result is up to date after every step. */
typedef struct wn_generation wn_generation;
wn_status wn_generation_create(wn_context *ctx, wn_session *session, const wn_generate_options *options,
                               wn_generation **out);
wn_status wn_generation_step(wn_context *ctx, wn_generation *generation, bool *more);
/* A generation's part of a step of many. */
typedef struct wn_generation_turn {
  wn_generation *generation;
  bool more;        /* written: another step follows */
  int32_t token;    /* written: the last one drawn in this step; -1: none */
  wn_status status; /* written: of wn_generation_step */
} wn_generation_turn;
/* One step of n generations: turns [n], each with a session of its own, n at most the group's `most`. Generations whose
 * prompts have been read draw a token each. Of the others the first `pieces` (0: all) read a piece of their prompt
 * each; the rest wait. One pass over the weights feeds all of it, as far as the group's memory reaches. Each generation
 * gets, to the bit, what wn_generation_step alone would give it. A failure belongs to one turn, whose status says it,
 * unless the step as a whole is refused; the call returns the first failure. The calling thread calls the callbacks, in
 * the order of the turns. */
wn_status wn_generation_step_together(wn_context *ctx, wn_session_group *group, wn_generation_turn *turns, int64_t n,
                                      int64_t pieces);
const wn_generate_result *wn_generation_result(const wn_generation *generation);
void wn_generation_destroy(wn_generation *generation); /* NULL is allowed */

/* wn_session_generate in a new session, whose capacity is the prompt and max_tokens, at most the number of the model's
 * learned positions. */
wn_status wn_generate(wn_context *ctx, wn_model *model, const wn_generate_options *options, wn_generate_result *result);

WN_API_END
#endif
