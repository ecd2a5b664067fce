/* One answer of a job, from the slot that it gets to its end (choice.c): what the worker's rounds are made of. All of
 * it runs in the worker's thread. */
#ifndef WN_SERVE_CHOICE_H
#define WN_SERVE_CHOICE_H

#include "serve/worker.h"

/* Tokens that its answer may have. */
int64_t wn_choice_tokens(const struct wn_serve_worker *w, const struct wn_serve_choice *c);
/* It has a slot and a session. */
wn_status wn_choice_begin(struct wn_serve_worker *w, struct wn_serve_choice *c);
/* Has it a prompt to read now? */
bool wn_choice_reads(const struct wn_serve_choice *c);
/* What it does before a round's step of all, as the one whose prompt is read. *read: a piece already. *more: it goes
 * on. */
wn_status wn_choice_before(struct wn_serve_worker *w, struct wn_serve_choice *c, bool *read, bool *more);
/* After its step of a round. */
wn_status wn_choice_after(struct wn_serve_worker *w, struct wn_serve_choice *c, bool more);
/* Its slot and its cache are free. */
void wn_choice_leave(struct wn_serve_worker *w, struct wn_serve_choice *c);

/* Bytes that running answers leave to the states of prompts. */
uint64_t wn_worker_prefix_room(const struct wn_serve_worker *w);
void wn_worker_prefix_publish(struct wn_serve_worker *w); /* their counts, for other threads */

#endif
