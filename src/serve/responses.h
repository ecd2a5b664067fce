/* /v1/responses: requests are turned into those of /v1/chat/completions, and their answers are written in another form.
 * Private to src/serve. */
#ifndef WN_SERVE_RESPONSES_H
#define WN_SERVE_RESPONSES_H

#include "serve/job.h"
#include "serve/kept.h"

/* Reads a request; as wn_serve_request_read. Responses to go on from are in `kept`, which the answer is added to. */
bool wn_responses_read(const struct wn_serve_model *m, struct wn_kept *kept, const char *body, size_t bytes,
                       struct wn_serve_request *out, struct wn_serve_error *error);

/* What an answer has so far (respond.c). */
struct wn_respond;
void wn_respond_destroy(struct wn_respond *r); /* NULL is allowed */
/* A piece of the answer's text or of its thoughts; a call {"id", "function": {"name", "arguments"}}. */
void wn_respond_text(const struct wn_serve_model *m, struct wn_serve_choice *c, const char *text, size_t bytes,
                     bool thought);
void wn_respond_call(const struct wn_serve_model *m, struct wn_serve_choice *c, const json_t *call);
/* The answer has ended, or failed while events were being sent. */
void wn_respond_end(const struct wn_serve_model *m, struct wn_serve_choice *c);
void wn_respond_fail(struct wn_serve_job *job, const char *message);

#endif
