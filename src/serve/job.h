/* Jobs: requests that are being answered. Handlers make them and queue them; from then on only the worker touches them.
 * A job has one choice for each answer. */
#ifndef WN_SERVE_JOB_H
#define WN_SERVE_JOB_H

#include "base/text.h"
#include "serve/access.h"
#include "serve/calls.h"
#include "serve/prefix.h"
#include "serve/request.h"
#include "serve/stream.h"
#include "text/normalize.h"

enum wn_choice_state {
  WN_CHOICE_WAITS,  /* waits for a slot */
  WN_CHOICE_BEGINS, /* has a slot and is to read its prompt */
  WN_CHOICE_SCORES, /* reads its prompt and scores it */
  WN_CHOICE_EMBEDS, /* reads its prompt and sums its states */
  WN_CHOICE_WRITES, /* generates */
  WN_CHOICE_DONE
};

struct wn_serve_trace;
struct wn_served;

struct wn_serve_choice {
  struct wn_serve_job *job;
  const struct wn_serve_model *model; /* of the worker */
  const struct wn_serve_prompt *prompt;
  int index;
  enum wn_choice_state state;
  wn_session *session;
  wn_generation *generation;
  wn_constraint *constraint;         /* NULL: any text */
  uint64_t cache_bytes, draft_bytes; /* of its cache, and of the draft model's for it */
  wn_text_stream *echo;              /* decodes the prompt's tokens while they are scored */
  int64_t scored;                    /* tokens of the prompt that have been scored */
  int64_t cached;                    /* tokens of the prompt that were known and not read (prefix.h) */
  struct wn_prefix_places places;    /* places of the prompt at which the state is still to be kept */
  double *sums;                      /* [C] sums of states, for an embedding */
  int64_t tokens;                    /* tokens of the answer */
  int64_t timed;                     /* those whose time has been counted; when the last of them was drawn */
  double timed_at;
  int64_t drafted, accepted; /* tokens guessed, and those of them that are the answer's */
  int64_t *kept;             /* [layers] tokens that its session held at the end; NULL: it had none */
  json_t *messages;          /* how much of each message it held at the end, and of the answer; NULL: not counted */
  int64_t seen;              /* tokens that its session had seen at the end; the last token was drawn but not fed */
  /* What those of them that it held took of cache_bytes, which has room for more; what all of them would take. */
  uint64_t held_bytes, full_bytes;
  const char *finish;     /* "length", "stop", "tool_calls"; NULL: not yet */
  struct wn_calls *calls; /* splits calls off; NULL: the answer is text */
  json_t *called;         /* the calls, unless they have been sent as events */
  size_t call_count;
  struct wn_reasoning *thoughts; /* splits thoughts off; NULL: the answer has none */
  int64_t thought_tokens;        /* tokens of them */
  struct wn_bytes thought;       /* their text, unless it has been sent as events */
  struct wn_respond *respond;    /* (respond.c) for /v1/responses */
  bool told;                     /* an event has been sent */
  struct wn_bytes text;          /* the answer so far; with echo preceded by the prompt */
  size_t characters;             /* length of the text */
  size_t held;                   /* characters drawn after it that are held back, since a stop string may have begun */
  json_t *scores;                /* the tokens' scores, in the API's form; NULL: not wanted */
  struct wn_serve_trace *trace;  /* (trace.c) NULL: not wanted */
};

struct wn_serve_job {
  struct wn_serve_job *next;
  struct wn_serve_request request;
  struct wn_http_stream *stream;
  struct wn_text out; /* the answer; bytes from `sent` on are still to be sent */
  size_t sent;
  char id[48];
  int64_t created; /* seconds since 1970 */
  double arrived;  /* wn_seconds_now when the whole request had come */
  double first;    /* seconds from then to its first token; 0: none yet */
  struct wn_serve_choice *choices;
  int count, done, running; /* choices; those that have ended; those that have a slot */
  int passed;               /* how many choices got a slot while this job waited for memory */
  bool blocked;             /* in this round no choice of it fits */
  bool admitted;            /* a choice of it has had a slot */
  bool finished, gone;      /* gone: the client has left */
  int64_t prompt_tokens;
  struct wn_served *served; /* its model, which stays as long as the job */
  const char *failed;       /* "error", "timeout"; NULL: it has not failed */
  struct wn_access *access; /* its line in the access log; NULL: none */
};

/* --- the form of an answer (answer.c); text goes to job->out --- */

/* Adds a piece to the choice's text, and sends it as an event if the job streams. */
void wn_job_say(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes);
/* Adds the score of a token: id with its log probability (NAN: none), and K most probable tokens. */
void wn_job_score(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id, double log_probability,
                  const int32_t *top, const double *top_log_probability, int K);
/* Sends an event without text whose content is `winnow`, which is released (NULL: out of memory). */
void wn_job_add_event(const struct wn_serve_model *m, struct wn_serve_job *job, json_t *winnow);
/* A choice has ended; the last one ends the answer. */
void wn_job_finish_choice(const struct wn_serve_model *m, struct wn_serve_choice *c);
/* The job failed while it ran: the message replaces the rest of the answer, with this HTTP status if the head has not
 * been sent. */
void wn_job_fail(struct wn_serve_job *job, int status, const char *message);
/* Appends a value as text, and releases it (NULL: out of memory). */
void wn_job_add_json(struct wn_text *out, json_t *value, const char *before, const char *after);
json_t *wn_job_usage(const struct wn_serve_model *m, const struct wn_serve_job *job);
/* {"error": ...} */
void wn_serve_error_text(const struct wn_serve_error *error, struct wn_text *out);
/* Empty scores if the request wants scores, else NULL. */
json_t *wn_job_new_scores(const struct wn_serve_request *request);
void wn_job_destroy(struct wn_serve_job *job);

/* --- traces of what caches hold (trace.c), if the request asks for them; failures are recorded in job->out --- */

/* A token of the answer has been drawn. */
void wn_trace_token(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id);
/* Called after any number of steps, and before the session is destroyed: sends an event with what has been read and
 * dropped since the last one, if anything. The first event is preceded by one with the prompt's tokens. Reads every
 * slot of every layer. */
void wn_trace_step(const struct wn_serve_model *m, struct wn_serve_choice *c);
void wn_trace_destroy(struct wn_serve_trace *trace); /* NULL is allowed */

#endif
