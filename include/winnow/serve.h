/* winnow: HTTP. A page that shows a run's curves while it trains. */
#ifndef WINNOW_SERVE_H
#define WINNOW_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/train.h"

WN_EXPERIMENTAL_BEGIN

/* Where a live view listens and what its page says. */
typedef struct wn_live_options {
  size_t size;         /* sizeof the struct (context.h) */
  const char *address; /* an IPv4 or IPv6 address to listen on; NULL: 127.0.0.1, seen from this machine alone */
  int port;            /* 0: any that is free */
  const char *title;   /* of the page; borrowed for the call */
  const char *command; /* that made the run, for the page; borrowed for the call */
} wn_live_options;
typedef struct wn_live wn_live;

/* Answers in threads of its own until wn_live_stop: / is the page, /log?after=PLACE the points behind that place as
 * JSON. Everything else is 404, every method but GET and HEAD 405. On a loopback address only requests that name this
 * machine (Host: localhost, 127.0.0.1, [::1]) are answered, so that no page from elsewhere can ask under another name.
 * No encryption, no users: whoever reaches another address can read the curves. WN_ERR_IO: the address cannot be had.
 */
wn_status wn_live_start(wn_context *ctx, const wn_live_options *options, wn_live **out);
int wn_live_port(const wn_live *live);
/* A step's figures, from the training thread; earlier ones of a run that goes on, from its log. Keeps at most 65,536
 * points: from there on every second of the older ones goes, validations stay. */
void wn_live_add(wn_live *live, const wn_train_progress *progress);
void wn_live_add_log(wn_live *live, const wn_train_log *log);
/* Nothing more will come. Where a page is open it waits, at most two seconds, until that page has the end. */
void wn_live_finish(wn_live *live);
void wn_live_stop(wn_live *live); /* NULL is allowed */

WN_API_END
#endif
