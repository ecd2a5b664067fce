/* winnow: generating text. One call feeds a prompt, draws tokens until something ends the text, and hands every token's
 * text to a callback while it goes. */
#ifndef WINNOW_GENERATE_H
#define WINNOW_GENERATE_H

#include "winnow/kv.h"
#include "winnow/model.h"

WN_EXPERIMENTAL_BEGIN

/* Why a text ended. */
typedef enum wn_generate_end {
  WN_GENERATE_LENGTH,   /* "length": max_tokens were drawn */
  WN_GENERATE_EOS,      /* "end": an end token of the tokenizer, or one of stop_tokens, was drawn */
  WN_GENERATE_STOP,     /* "stop": one of stop_strings was written */
  WN_GENERATE_CONTEXT,  /* "context": the session has no room for the token that was drawn last */
  WN_GENERATE_CANCELLED /* "interrupt": wn_context_cancel was called, or the callback returned false */
} wn_generate_end;
#define WN_GENERATE_END_COUNT 5
const char *wn_generate_end_name(wn_generate_end end);

/* What a token adds to the text. */
typedef struct wn_generate_piece {
  int64_t index;    /* of the token, from 0 */
  int32_t id;       /* -1: no token; text that was held back and turned out to be no stop string, in a last call */
  const char *text; /* [bytes] whole characters of UTF-8, borrowed for the call, not NUL-terminated */
  size_t bytes;     /* 0 where a character is not complete yet, or a stop string may have begun */
  double log_probability; /* with log_probabilities: of the token, natural logarithm, before temperature, top-k and
                             top-p */
} wn_generate_piece;

/* What is generated and when it ends; defaults by wn_generate_options_init. */
typedef struct wn_generate_options {
  size_t size; /* sizeof the struct (context.h) */

  /* The prompt: at least one token, or a text for the tokenizer (wn_prompt_encode). Borrowed. */
  const int32_t *prompt; /* [prompt_count]; NULL: text */
  int64_t prompt_count;
  const char *text; /* [bytes] */
  size_t bytes;
  const int32_t
      *inputs; /* [input_count] for an encoder-decoder: what its encoder reads, before the prompt; else NULL */
  int64_t input_count;

  const wn_tokenizer *tok; /* NULL: tokens alone, without text and stop strings */
  wn_sampling sampling;    /* as wn_sampling_init leaves it */
  uint64_t first_step;     /* of the sampling: token i is drawn with step first_step + i; 0 */
  int32_t vocab_size;      /* ids below it are drawn; 0: the tokenizer's, without one the model's */

  int64_t max_tokens;         /* 256; 0: the prompt is fed and nothing drawn */
  bool ignore_end;            /* wn_tokenizer_is_end ends nothing; stop_tokens still do */
  const int32_t *stop_tokens; /* [stop_token_count] other tokens that end the text and are no part of it */
  int stop_token_count;
  const char *const *stop_strings; /* [stop_string_count] UTF-8, not empty: where the text has one, whatever tokens it
                                      is made of, it ends, and neither the stop string nor what stands after it is
                                      handed out. Text that may be the beginning of one is held back */
  int stop_string_count;

  const int32_t *text_before; /* [text_before_count] tokens of the text that the generated one goes on: tokenizers that
                                 drop the space at a text's beginning keep it then; NULL: a text of its own */
  int64_t text_before_count;
  bool log_probabilities;
  int32_t *drawn; /* [max_tokens] the tokens are written there; NULL: nowhere */

  /* Callbacks, each NULL or called by the thread that called. */
  bool (*piece)(void *user, const wn_generate_piece *piece); /* once a token; false ends the generation */
  void (*logits)(void *user, int64_t index, float *logits,
                 int64_t V);                                     /* before a token is drawn: may change them [V] */
  const char *(*text_of)(void *user, int32_t id, size_t *bytes); /* of ids outside the tokenizer: text (UTF-8) until
                                                                    the next call, or NULL; without it they have none */
  void *user;

  /* For wn_generate, which makes the session. */
  const wn_budgets *budgets; /* NULL: nothing is evicted */
  wn_cache_format cache;     /* WN_CACHE_AUTO */
} wn_generate_options;
void wn_generate_options_init(wn_generate_options *options, size_t size); /* size: sizeof *options */

/* What was generated. */
typedef struct wn_generate_result {
  wn_generate_end end;
  int64_t prompt_tokens; /* of the prompt that the session has seen: all, unless cancelled */
  int64_t tokens;        /* drawn; an end token is not counted */
  uint64_t steps;        /* of the sampling that were used: tokens, and an end token */
  int32_t end_token;     /* that ended the text; -1: none */
  int32_t unfed;         /* the last token, where the session has not seen it: the next prompt's first; -1: it has */
  double prompt_seconds, token_seconds;
} wn_generate_result;

/* Tokens of a text that a model is to continue: with the token that begins a text where the tokenizer has one; without
 * it an empty text is a newline. *ids is freed with wn_tokens_free. */
wn_status wn_prompt_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, int32_t **ids,
                           size_t *count);

/* Generates in a session of one sequence, after what it has seen. result: may be NULL, is
 * written whatever the status. wn_context_cancel, from a signal
 * or another thread, ends it at the next token or piece of the prompt: that is WN_OK, with result->end to tell; the
 * request stays until wn_context_resume. Nothing is allocated for a token. */
wn_status wn_session_generate(wn_context *ctx, wn_session *session, const wn_generate_options *options,
                              wn_generate_result *result);
/* The same in a session of its own, as long as prompt and max_tokens, at most the model's learned positions. */
wn_status wn_generate(wn_context *ctx, wn_model *model, const wn_generate_options *options, wn_generate_result *result);

WN_API_END
#endif
