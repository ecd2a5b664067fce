/* A choice: one answer of a job, from getting a slot to its end (choice.c). All functions run in the worker's
 * thread. */
#ifndef WN_SERVE_CHOICE_H
#define WN_SERVE_CHOICE_H

#include "serve/worker.h"

/* The most tokens that the answer may have. */
int64_t wn_choice_tokens(const struct wn_serve_worker *w, const struct wn_serve_choice *c);
/* Begins a choice that has a slot: opens its session. */
wn_status wn_choice_begin(struct wn_serve_worker *w, struct wn_serve_choice *c);
/* Does it have a prompt to read now? */
bool wn_choice_reads(const struct wn_serve_choice *c);
/* The choice's turn to read its prompt, before the round's common step. *more: it goes on. */
wn_status wn_choice_before(struct wn_serve_worker *w, struct wn_serve_choice *c, bool *more);
/* After the choice's step in a round. */
wn_status wn_choice_after(struct wn_serve_worker *w, struct wn_serve_choice *c, bool more);
/* Frees its slot and its cache. */
void wn_choice_leave(struct wn_serve_worker *w, struct wn_serve_choice *c);

/* Bytes that running answers leave for kept states of prompts. */
uint64_t wn_worker_prefix_room(const struct wn_serve_worker *w);
void wn_worker_prefix_publish(struct wn_serve_worker *w); /* copies its counts for other threads */

#endif
