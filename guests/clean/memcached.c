/* memcached's text protocol: see memcached.h. What is not understood is UNKNOWN, or failed: both are safe. */
#include "memcached.h"
#include "plover_clean.h"

#include <string.h>

#define WORDS_MAX (REQUEST_KEYS_MAX + 1)

struct word {
    const char *start;
    size_t count;
};

static bool is(struct word word, const char *text)
{
    return word.count == strlen(text) && !memcmp(word.start, text, word.count);
}

/* Splits a line at its blanks. Returns the number of words; 0 for no words, too many, or control characters. */
static unsigned split(const char *line, size_t count, struct word *words)
{
    unsigned found = 0;
    for (size_t at = 0; at < count;) {
        if (line[at] == ' ') {
            at++;
            continue;
        }
        if (found == WORDS_MAX)
            return 0;
        struct word *word = &words[found++];
        *word = (struct word){.start = line + at};
        for (; at < count && line[at] != ' '; at++, word->count++)
            if ((unsigned char)line[at] < ' ')
                return 0;
    }
    return found;
}

static bool digits(struct word word, size_t count_max, uint64_t *value)
{
    *value = 0;
    if (!word.count || word.count > count_max)
        return false;
    for (size_t at = 0; at < word.count; at++) {
        if (word.start[at] < '0' || word.start[at] > '9')
            return false;
        *value = *value * 10 + (uint64_t)(word.start[at] - '0');
    }
    return true;
}

static bool number(struct word word, uint64_t *value)
{
    return digits(word, 9, value);
}

/* The longest key that memcached takes. */
#define KEY_BYTES_MAX 250

/* Whether memcached takes the line of a write with a value. Of one that it refuses, it takes the value for commands. */
static bool takes(const struct word *words, const struct word *unique, uint64_t *value)
{
    struct word expires = words[3];
    uint64_t any;
    if (expires.count && expires.start[0] == '-') {
        expires.start++;
        expires.count--;
    }
    return words[1].count <= KEY_BYTES_MAX && number(words[2], &any) && number(expires, &any) &&
           number(words[4], value) && (!unique || digits(*unique, 19, &any));
}

/* Writes of one key: how many words each may have, with and without "noreply", and whether a value follows. */
static const struct command {
    const char *name;
    unsigned words_min, words_max;
    bool value;
} writes[] = {
    {"set", 5, 6, true},     {"add", 5, 6, true},  {"replace", 5, 6, true}, {"append", 5, 6, true},
    {"prepend", 5, 6, true}, {"cas", 6, 7, true},  {"incr", 3, 4, false},   {"decr", 3, 4, false},
    {"touch", 3, 4, false},  {"delete", 2, 4, false},
};

static bool parse_write(struct request *request, const struct word *words, unsigned count)
{
    for (size_t at = 0; at < sizeof writes / sizeof *writes; at++) {
        const struct command *command = &writes[at];
        if (!is(words[0], command->name))
            continue;
        if (count < command->words_min || count > command->words_max)
            return false;
        uint64_t value;
        if (command->value) {
            if (!takes(words, is(words[0], "cas") ? &words[5] : NULL, &value))
                return false;
            request->data = value + 2;
        }
        request->kind = WRITE;
        request->keys = 1;
        request->key[0] = plover_clean_key(words[1].start, words[1].count);
        return true;
    }
    return false;
}

void request_line(struct request *request, const char *line, size_t count)
{
    memset(request, 0, sizeof *request);
    request->kind = UNKNOWN;
    if (count && line[count - 1] == '\r')
        count--;
    struct word words[WORDS_MAX];
    unsigned found = split(line, count, words);
    if (found < 2)
        return;
    if (is(words[0], "get") || is(words[0], "gets")) {
        request->kind = READ;
        request->keys = found - 1;
        /* memcached gives a value another number when it moves it, which is no write. */
        request->failed = is(words[0], "gets");
        for (unsigned key = 0; key < request->keys; key++)
            request->key[key] = plover_clean_key(words[key + 1].start, words[key + 1].count);
        return;
    }
    parse_write(request, words, found);
}

void request_parse(struct request *request, const char *bytes, size_t count)
{
    const char *feed = memchr(bytes, '\n', count);
    size_t line = feed ? (size_t)(feed - bytes) : count, rest = feed ? count - line - 1 : 0;
    request_line(request, bytes, line);
    bool ends = !request->data || (rest >= 2 && !memcmp(feed + 1 + rest - 2, "\r\n", 2));
    request->whole = feed && rest == request->data && ends;
    if (!request->whole)
        request->kind = UNKNOWN;
}

/* One line of the reply of a READ. */
static void follow_line(struct request *request, const char *line, size_t count)
{
    struct word words[WORDS_MAX];
    uint64_t bytes;
    if (count && line[count - 1] == '\r')
        count--;
    unsigned found = split(line, count, words);
    if (found == 1 && is(words[0], "END")) {
        request->done = true;
        request->failed |= request->hits != request->keys;
        return;
    }
    /* Keys that are absent have no line, so a line for a later key tells of a miss. */
    if ((found != 4 && found != 5) || !is(words[0], "VALUE") || !number(words[3], &bytes) ||
        request->hits == request->keys ||
        plover_clean_key(words[1].start, words[1].count) != request->key[request->hits]) {
        request->failed = true;
        return;
    }
    request->hits++;
    request->value_left = bytes + 2;
}

bool reply_follow(struct request *request, const struct iovec *parts, size_t count, size_t skip)
{
    /* "VALUE", a key of up to 250 bytes, and three numbers. */
    char line[320];
    size_t line_count = 0;
    for (size_t part = 0; part < count; part++) {
        const char *bytes = parts[part].iov_base;
        size_t at = skip < parts[part].iov_len ? skip : parts[part].iov_len;
        skip -= at;
        while (at < parts[part].iov_len && !request->failed) {
            if (request->value_left) {
                size_t left = parts[part].iov_len - at;
                size_t passed = request->value_left < left ? request->value_left : left;
                request->value_left -= passed;
                at += passed;
            } else if (request->done || line_count == sizeof line) {
                request->failed = true;
            } else if (bytes[at] == '\n') {
                at++;
                follow_line(request, line, line_count);
                line_count = 0;
            } else {
                line[line_count++] = bytes[at++];
            }
        }
    }
    request->failed |= line_count != 0; /* a line goes on in the next datagram: memcached does not do that */
    return !request->failed;
}
