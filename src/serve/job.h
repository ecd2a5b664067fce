/* Jobs: a request that is being answered. Handlers make them and put them into the queue; the worker alone touches them
 * from then on. */
#ifndef WN_SERVE_JOB_H
#define WN_SERVE_JOB_H

#include "base/text.h"
#include "serve/prefix.h"
#include "serve/request.h"
#include "serve/stream.h"
#include "text/normalize.h"

enum wn_choice_state {
  WN_CHOICE_WAITS,  /* for a slot */
  WN_CHOICE_BEGINS, /* has one, and is to read its prompt */
  WN_CHOICE_SCORES, /* reads its prompt and scores it */
  WN_CHOICE_EMBEDS, /* reads its prompt and adds up its states */
  WN_CHOICE_WRITES, /* generates */
  WN_CHOICE_DONE
};

struct wn_serve_trace;

struct wn_serve_choice {
  struct wn_serve_job *job;
  const struct wn_serve_model *model; /* the worker's */
  const struct wn_serve_prompt *prompt;
  int index;
  enum wn_choice_state state;
  wn_session *session;
  wn_generation *generation;
  wn_constraint *constraint; /* NULL: any text */
  uint64_t cache_bytes;
  wn_text_stream *echo;           /* of the prompt's tokens, while they are scored */
  int64_t scored;                 /* tokens of the prompt */
  int64_t cached;                 /* tokens of the prompt that were known (prefix.h) */
  struct wn_prefix_places places; /* where its states are still to be kept */
  double *sums;                   /* [C] of states, for an embedding */
  int64_t tokens;                 /* of the answer */
  int64_t seen;                   /* by its session, at its end: the last token is drawn and not read */
  const char *finish;             /* "length", "stop"; NULL: not yet */
  struct wn_bytes text;           /* the answer so far; with echo the prompt before it */
  size_t characters;              /* of the text */
  size_t held;                    /* characters that have been drawn after it, where a stop string may have begun */
  json_t *scores;                 /* of the tokens, as the API writes them; NULL: not wanted */
  struct wn_serve_trace *trace;   /* NULL: none is wanted (trace.c) */
};

struct wn_serve_job {
  struct wn_serve_job *next;
  struct wn_serve_request request;
  struct wn_http_stream *stream;
  struct wn_text out; /* still to be sent from `sent` on */
  size_t sent;
  char id[48];
  int64_t created; /* seconds since 1970 */
  double arrived;  /* wn_seconds_now */
  struct wn_serve_choice *choices;
  int count, done;
  bool begun, finished, gone; /* gone: the client has left */
  int64_t prompt_tokens;
};

/* --- what an answer looks like (answer.c); text goes to job->out --- */

/* A piece of an answer: to the choice's text, and where the job streams as an event. */
void wn_job_say(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes);
/* The score of a token: id with its log probability (NAN: it has none), and K others. */
void wn_job_score(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id, double log_probability,
                  const int32_t *top, const double *top_log_probability, int K);
/* An event without text: what `winnow` says, which is released (NULL: out of memory). */
void wn_job_add_event(const struct wn_serve_model *m, struct wn_serve_job *job, json_t *winnow);
/* A choice has ended; the last one ends the answer. */
void wn_job_finish_choice(const struct wn_serve_model *m, struct wn_serve_choice *c);
/* Something failed while it ran: said in place of the rest, with this status where there is no head yet. */
void wn_job_fail(struct wn_serve_job *job, int status, const char *message);
/* {"error": ...} */
void wn_serve_error_text(const struct wn_serve_error *error, struct wn_text *out);
/* Empty scores, where the request wants any. */
json_t *wn_job_new_scores(const struct wn_serve_request *request);
void wn_job_destroy(struct wn_serve_job *job);

/* --- what its caches hold (trace.c), where the request asks for it; a failure is one of the job's text --- */

/* A token of the answer has been drawn. */
void wn_trace_token(const struct wn_serve_model *m, struct wn_serve_choice *c, int32_t id);
/* After any number of steps, and before the session goes: the event of what has been read and dropped since the last
 * one; none, if nothing was. Before the first one the event with the prompt's tokens. Costs a look at every layer's
 * slots. */
void wn_trace_step(const struct wn_serve_model *m, struct wn_serve_choice *c);
void wn_trace_destroy(struct wn_serve_trace *trace); /* NULL is allowed */

#endif
