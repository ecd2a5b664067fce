/* A conversation, shared by cmd_chat.c and the files chat_*.c.
 *
 * A turn is kept as the user's text and the tokens of the answer. `ids` has the tokens of all turns from `first` on.
 * The session has read the beginning of `ids`; the rest is read with the next answer. So anything that changes the
 * conversation (a removed turn, another system message, a loaded file) only has to rewrite `ids` and reset the
 * session. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include <jansson.h>
#include <winnow/chat.h>
#include <winnow/generate.h>
#include <winnow/model.h>
#include "args.h"
#include "format.h"
#include "load.h"

struct chat_request {
  struct cli_common common;
  struct cli_loading load;
  struct cli_sampling sampling;
  struct cli_dialogue dialogue;
  struct cli_format format;
  struct cli_list stop;
  const char *pin;
  int64_t tokens, context;
  bool show_context, no_history;
};

struct chat_turn {
  char *message;
  struct cli_ids prompt; /* the tokens before the answer, from the end of the last answer on */
  struct cli_ids answer;
  char *text; /* text of the answer */
  bool pinned;
};

struct chat {
  wn_context *ctx;
  struct chat_request *r;
  struct cli_loaded in;
  wn_session *session;
  wn_session *before; /* the session as it was when the last turn began, for /regen and --stop; NULL: not kept */
  bool before_holds;
  wn_constraint *constraint;
  struct cli_dialogue_choice dialogue;
  char *system;     /* set by /system and /load; dialogue.system points to it */
  int64_t capacity; /* tokens that the session can read */
  bool endless;     /* every layer evicts and uses cache positions, so the text may grow without limit */
  struct chat_turn *turns;
  size_t turn_count, turn_room, first; /* turns before `first` are forgotten */
  struct cli_ids ids;                  /* tokens of turns first.. */
  bool terminal;
  uint64_t drawn; /* sampling steps since the conversation began */
  int64_t answers, tokens, fed;
  double feed_seconds, draw_seconds;
  json_t *log;         /* --json: a list of answers */
  struct cli_list own; /* owns values of /set */
};

/* --- the conversation (chat_turns.c); 0, or 1 after reporting --- */

/* Appends a turn without an answer. */
int chat_add_turn(struct chat *c, const char *message);
/* Makes the session capacity for `more` tokens, if need be by forgetting the oldest turns, never the last one. */
int chat_make_room(struct chat *c, int64_t more);
/* Pins the system message and the pinned turns in the session, where they are not yet. */
int chat_pin(struct chat *c);
/* Writes the tokens of turns first.. again; the session reads all of them with the next answer. */
int chat_rebuild(struct chat *c);
void chat_forget(struct chat *c);                 /* begins a new conversation */
void chat_set_system(struct chat *c, char *text); /* takes over text (malloc'd); NULL: none */
/* Opens a session as the request says, which may have changed, and closes the old one. */
int chat_open_session(struct chat *c);
void chat_discard(struct chat *c); /* frees turns and system message; needs no session */
void chat_close(struct chat *c);

/* --- an answer (chat_answer.c) --- */

struct chat_result {
  wn_generate_end end;
  int64_t tokens;
  double seconds;
};
/* Feeds what the session has not read and draws an answer to the last turn. Returns the exit code, after reporting. */
int chat_answer(struct chat *c, struct chat_result *out);
/* Removes the last answer, so that another can be drawn. False: there is none. */
bool chat_take_back(struct chat *c);

/* --- what is kept (chat_show.c) --- */

struct chat_kept {
  int64_t tokens; /* of the conversation */
  int64_t kept;   /* held by at least one layer, or not read yet */
  double mean;    /* tokens that a layer holds, mean over the layers */
};
int chat_count_kept(const struct chat *c, struct chat_kept *out);
/* Lists the turns: tokens, and how many a layer holds on average. As lines on standard error, or as JSON. */
int chat_print_turns(const struct chat *c);
json_t *chat_turns_json(const struct chat *c); /* NULL: out of memory, or another error, reported */
/* Prints the conversation, with text that no layer holds struck through (~~ if the output is no terminal). */
int chat_print_context(const struct chat *c);
/* Prints a model's text on a terminal, with "?" for control characters. False: writing failed. */
bool chat_put_safely(const char *text, size_t bytes);
/* The same as a list of {"text", "layers"}: how many layers hold each token; null: not read yet. NULL: out of memory.
 */
json_t *chat_context_json(const struct chat *c);

/* --- files (chat_file.c) --- */

int chat_save(struct chat *c, const char *path);
int chat_load(struct chat *c, const char *path);

/* --- commands (chat_commands.c) --- */

enum chat_next {
  CHAT_MESSAGE, /* no command */
  CHAT_DONE,
  CHAT_ANSWER, /* answer the last turn */
  CHAT_LEAVE
};
enum chat_next chat_command(struct chat *c, const char *line);
/* The command that begins with these letters, if exactly one does. */
const char *chat_complete(const char *begin);

#endif
