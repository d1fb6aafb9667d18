/* Redis's protocol (RESP 2 and 3), as far as needed to know what a command writes and what a reply depends on. No I/O. */
#ifndef PLOVER_CLEAN_RESP_H
#define PLOVER_CLEAN_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum resp_kind {
    RESP_READS,   /* reads its keys; a reply without anything absent depends on nothing else */
    RESP_WRITES,  /* writes its keys, and nothing else */
    RESP_NEUTRAL, /* writes nothing; its reply is never clean */
    RESP_ALL,     /* may write everything */
    RESP_ENDS,    /* executes or forgets what was queued in a transaction */
    RESP_MUTE,    /* writes nothing; from here on there is not one reply for each command */
    RESP_UNKNOWN  /* may write everything, and have any number of replies */
};

/* A command that is read in parts. All zero: before a command. */
struct resp_command {
    enum { RESP_COUNT, RESP_LENGTH, RESP_BYTES, RESP_END } next;
    char line[16]; /* of a number */
    uint8_t line_count;
    char text[24]; /* the name in lower case, or the second word */
    uint8_t text_count;
    bool text_wrong;
    uint8_t parent; /* not 0: the second word is looked at, too */
    uint32_t words, word; /* words in all, and those that are whole */
    uint64_t left;        /* bytes of a word that are to come */
    uint64_t key;         /* plover_clean_key() of the word, if it is a key */
    enum resp_kind kind;
    int first, last, step; /* which words are keys; a last one below 0 counts from the end */
};

enum resp_step {
    RESP_MORE, /* all bytes are used */
    RESP_KEY,  /* a key is whole: `key` */
    RESP_DONE, /* the command is whole: `kind` */
    RESP_WRONG /* Redis may find other commands in these bytes */
};

/* Reads on until RESP_MORE. `used` becomes the number of bytes that are done with; after RESP_DONE the next command begins with a
 * `command` that is all zero. */
enum resp_step resp_read(struct resp_command *command, const char *bytes, size_t count, size_t *used);

/* The kind of a command by its name in lower case, and which of its words are keys. */
enum resp_kind resp_kind_of(const char *name, int *first, int *last, int *step);

/* A reply that is sent in parts. All zero: before a reply. */
struct resp_reply {
    bool begun;
    bool absent;      /* something is absent, or not understood: the reply depends on more than its keys */
    bool queued;      /* the command will be executed by EXEC */
    uint64_t left;    /* elements that are to come */
    uint64_t skipped; /* bytes of a string that are to come, with its line end */
    char line[24];    /* the beginning of an element's line */
    uint8_t line_count;
};

/* Follows a reply until it ends (RESP_DONE), or the bytes do (RESP_MORE). */
enum resp_step resp_follow(struct resp_reply *reply, const char *bytes, size_t count, size_t *used);

#endif
