/* A request: the fields of /v1/completions and /v1/chat/completions, read and checked before anything runs. */
#ifndef WN_SERVE_REQUEST_H
#define WN_SERVE_REQUEST_H

#include <jansson.h>
#include <stdatomic.h>
#include "ops/evict.h"
#include "serve/calls.h"
#include "serve/reasoning.h"
#include "text/chat.h"
#include "winnow/chat.h"
#include "winnow/embed.h"
#include "winnow/generate.h"

enum {
  WN_SERVE_WRITTEN = 64,   /* the most prompts of a request for text */
  WN_SERVE_PROMPTS = 1024, /* the most prompts of a request for embeddings */
  WN_SERVE_CHOICES = 128,  /* the most answers to all prompts of a request */
  WN_SERVE_STOPS = 16,
  WN_SERVE_BIASES = 256,
  WN_SERVE_MESSAGES = 1024,
  WN_SERVE_TOP = 20 /* the most probable tokens per position, at most */
};

/* An error in the OpenAI API's form. */
struct wn_serve_error {
  int status;       /* HTTP status; 0: no error */
  const char *type; /* "invalid_request_error" */
  char param[64];   /* the field; "": none */
  char message[512];
};
__attribute__((format(printf, 4, 5))) bool wn_serve_refuse(struct wn_serve_error *error, int status, const char *param,
                                                           const char *format, ...); /* returns false */

/* The model that a server runs. The handlers and the worker each have a copy with a context of their own. */
struct wn_serve_model {
  wn_context *ctx;
  wn_model *model;
  const wn_tokenizer *tok;
  const wn_chat_template *chat; /* NULL: none that can be read, */
  const char *no_chat;          /* and why */
  const char *name;
  int64_t context;           /* tokens of prompt and answer together */
  size_t text_bytes;         /* a text of more bytes has more tokens: context x the longest token */
  int32_t entries;           /* ids below it are valid tokens */
  const wn_budgets *budgets; /* budgets of requests that state none; layers 0: none */
  wn_model *draft;           /* NULL: none */
  bool pin_system;           /* system messages are pinned where requests say nothing */
  wn_cache_format cache;
  _Atomic uint64_t *idle; /* a bit for each field that the log has named; NULL: none are named */
};

struct wn_serve_prompt {
  int32_t *ids; /* wn_tokens_free */
  int64_t count;
  bool goes_on; /* the answer continues text that the prompt ends with: a chat's last message is the assistant's */
  struct wn_chat_owners owners; /* of a chat under budgets: whose tokens are whose */
  json_t *told;                 /* [owners.count] its messages as usage names them: {"role", "pinned"} */
  struct wn_pins pins;          /* tokens of pinned messages */
};

/* Fields of /v1/embeddings (embed.h). */
struct wn_serve_embed {
  bool wanted, base64;
  wn_pooling pooling;
  int64_t dimensions; /* only the first so many numbers, normalised again */
};

struct wn_serve_request {
  bool chat, stream, include_usage, echo;
  bool trace;         /* send events that say what is kept (trace.c) */
  bool scores;        /* log probabilities are wanted */
  bool by_id;         /* their tokens are named by number */
  int top;            /* also those of so many most probable tokens */
  int64_t n;          /* answers to each prompt */
  int64_t max_tokens; /* -1: as many as fit */
  double temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty;
  int64_t top_k, seed; /* seed -1: not given */
  wn_logit_bias biases[WN_SERVE_BIASES];
  int bias_count;
  const char *stops[WN_SERVE_STOPS]; /* borrowed from json */
  int stop_count;
  wn_constraint *constraint;       /* each answer gets a copy; NULL: any text */
  wn_budgets budgets;              /* layers 0: none */
  struct wn_serve_prompt *prompts; /* [prompt_count] */
  int prompt_count;
  const struct wn_call_form *calls; /* how the model writes calls of the request's tools; NULL: none are asked for */
  bool calls_must;                  /* the answer is a call, whose first mark ends the prompt */
  const struct wn_reasoning_form *thoughts; /* how the model writes thoughts; NULL: they are not split off */
  json_t *json;
  /* Of /v1/responses: the request without its input; NULL: another API's. The messages, and where they are kept with
   * the answer; NULL: nowhere. */
  json_t *asked, *turns;
  struct wn_kept *kept;
  struct wn_serve_embed embed;
  double tau; /* as in wn_session_options */
};

/* False: `error` says what is wrong. Call wn_serve_request_clear in either case. */
bool wn_serve_request_read(const struct wn_serve_model *m, bool chat, const char *body, size_t bytes,
                           struct wn_serve_request *out, struct wn_serve_error *error);
/* The same of a body that has been read, which it takes over. */
bool wn_serve_request_take(const struct wn_serve_model *m, bool chat, json_t *body, struct wn_serve_request *out,
                           struct wn_serve_error *error);
void wn_serve_request_clear(struct wn_serve_request *request);
void wn_serve_prompt_clear(struct wn_serve_prompt *prompt);
/* The budgets under which it is answered: its own, or the server's; layers 0: none. */
const wn_budgets *wn_serve_budgets(const struct wn_serve_model *m, const struct wn_serve_request *request);
/* Refuses a text of so many bytes that cannot fit, before it is encoded, which would take long. */
bool wn_serve_may_fit(const struct wn_serve_model *m, const char *field, size_t bytes, struct wn_serve_error *error);

/* Parses a body as a JSON object; NULL: `error` says why not. */
json_t *wn_serve_body(const char *body, size_t bytes, struct wn_serve_error *error);
/* Checks that an object has only these keys [count]. Errors say `where` and name the parameter (NULL: the key). */
bool wn_serve_check_keys(const json_t *object, const char *where, const char *param, const char *const *keys, int count,
                         struct wn_serve_error *error);
/* Reads a text, tokens, or a list of at most `most` of either into out->prompts. Errors name the field. */
bool wn_serve_prompts(const struct wn_serve_model *m, const char *field, size_t most, const json_t *value,
                      struct wn_serve_request *out, struct wn_serve_error *error);
/* The text of a message: a text, or a list of parts of one. NULL: neither. A new reference. */
json_t *wn_serve_message_text(const json_t *content);
/* Encodes the messages of a body, with its tools and variables of the template, up to where the model writes. */
bool wn_serve_messages(const struct wn_serve_model *m, const json_t *body, struct wn_serve_prompt *out,
                       struct wn_serve_error *error);

#endif
