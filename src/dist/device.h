/* Messages between arrays that the host cannot read. */
#ifndef WN_DIST_DEVICE_H
#define WN_DIST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

/* A transport between arrays that the host cannot read, one device a process. A backend's memory names it (wn_memory).
 * Messages that are posted before the next `test` are a group. Groups are exchanged one after another, each behind what
 * the memory was asked for before that `test`: all processes post the same groups in the same order, and none
 * waits for a message of a later group. Like a transport, it does not sum. */
enum { WN_DIST_TEXT = 64, WN_DIST_ID = 128 };
struct wn_dist_device {
  /* Opens the library. version, place: of the library and of the device, as text; all processes of a group need the
   * same version, and no two of a machine the same device. */
  wn_status (*open)(wn_context *ctx, char version[WN_DIST_TEXT], char place[WN_DIST_TEXT]);
  /* Process 0 makes an id, with which all join. */
  wn_status (*name)(wn_context *ctx, unsigned char id[WN_DIST_ID]);
  wn_status (*join)(wn_context *ctx, const unsigned char id[WN_DIST_ID], int rank, int size);
  /* As `send`, `receive` and `test` of a transport. What the memory is asked for after *done finds the group's messages
   * done. */
  wn_status (*post)(wn_context *ctx, void *data, size_t bytes, int other, bool sends, int *request);
  wn_status (*test)(wn_context *ctx, int request, bool *done);
  void (*end)(void);
};

#endif
