/* A regular expression as nodes that are followed all at once (Thompson, 1968). Private to regular*.c. */
#ifndef WN_TEXT_REGULAR_NODES_H
#define WN_TEXT_REGULAR_NODES_H

#include "text/regular.h"

enum { WN_REGULAR_NODES = 8192, WN_REGULAR_RANGES = 4096, WN_REGULAR_SETS = 256 };
#define WN_REGULAR_LAST 0x10FFFFu

enum wn_node_kind {
  WN_NODE_EMPTY, /* goes on to both */
  WN_NODE_SET,   /* goes on after a character of set `set` */
  WN_NODE_BEGIN, /* goes on at the beginning alone, */
  WN_NODE_END,   /* at the end alone */
  WN_NODE_MATCH
};
struct wn_node {
  uint8_t kind;
  uint16_t set;
  uint16_t to[2]; /* 0: nowhere */
};
struct wn_range {
  uint32_t low, high;
};
struct wn_set { /* characters: ascending ranges that do not touch */
  uint32_t first, count;
};

struct wn_nodes {
  struct wn_node node[WN_REGULAR_NODES]; /* from 1 on */
  struct wn_range range[WN_REGULAR_RANGES];
  struct wn_set set[WN_REGULAR_SETS];
  uint32_t node_count, range_count, set_count;
  int patterns;
  uint16_t start[WN_REGULAR_PATTERNS]; /* also its least node: its others come after it, before the next one's */
  uint16_t match[WN_REGULAR_PATTERNS];
};

/* Adds a pattern, which may match anywhere in a text. */
wn_status wn_nodes_add(wn_context *ctx, struct wn_nodes *nodes, const char *pattern);

#endif
