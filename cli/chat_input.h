/* Messages from a terminal or a pipe. A message is a line, or several lines of which each but the last ends in a
 * backslash. On a terminal pasted text is one message, however many lines it has. */
#ifndef CLI_CHAT_INPUT_H
#define CLI_CHAT_INPUT_H

#include <stdbool.h>
#include <stddef.h>

struct chat_input;
/* terminal: standard input is a terminal. history: read and write a history file. NULL: out of memory. */
struct chat_input *chat_input_open(bool terminal, bool quiet, bool history);
void chat_input_close(struct chat_input *in); /* NULL is allowed */

enum chat_read {
  CHAT_READ_MESSAGE, /* *message, free()d by the caller */
  CHAT_READ_DROPPED, /* Ctrl-C dropped what was typed; `empty`: nothing was */
  CHAT_READ_END,
  CHAT_READ_FAILED /* reported */
};
enum chat_read chat_input_read(struct chat_input *in, char **message, bool *empty);

#define CHAT_MESSAGE_LIMIT ((size_t)1 << 20)

/* --- line editing (chat_edit.c), where the build has libedit --- */

struct chat_edit;
/* NULL: no libedit, no suitable terminal, or no memory. */
struct chat_edit *chat_edit_open(bool history);
void chat_edit_close(struct chat_edit *e); /* NULL is allowed */
/* Reads a line without its end; line ends in pasted text stay. free()d by the caller. */
enum chat_read chat_edit_line(struct chat_edit *e, const char *prompt, char **line, bool *empty);
void chat_edit_remember(struct chat_edit *e, const char *message);

#endif
