/* Redis's protocol: see resp.h. Bytes that are not understood are RESP_UNKNOWN, RESP_WRONG or absent: all are safe. */
#include "resp.h"
#include "plover_clean.h"

#include <string.h>

/* ---- what each command does -------------------------------------------------------------------- */

/* Left out of RESP_READS are commands whose replies tell of something absent that no write has removed: a field of a hash may
 * expire by itself. No RESP_READS reads a stream or its groups. */
static const struct {
    enum resp_kind kind;
    int first, last, step;
    const char *names; /* each between two blanks */
} rules[] = {
    {RESP_READS, 1, 1, 1, " get hget hmget lindex lrange sismember smembers zrange zscore "},
    {RESP_READS, 1, -1, 1, " mget "},
    {RESP_WRITES, 1, 1, 1,
     " set incr setex psetex setnx getset getdel getex append setrange setbit bitfield decr incrby decrby incrbyfloat expire "
     "pexpire expireat pexpireat persist hset hmset hsetnx hdel hincrby hincrbyfloat hexpire hpexpire hexpireat hpexpireat "
     "hpersist hgetex hgetdel hsetex lpush rpush lpushx rpushx lpop rpop lset linsert lrem ltrim sadd srem spop zadd zincrby "
     "zrem zremrangebyrank zremrangebyscore zremrangebylex zpopmin zpopmax geoadd xadd xdel xtrim pfadd "},
    {RESP_WRITES, 1, -1, 1, " del unlink touch pfcount pfmerge "},
    {RESP_WRITES, 1, -1, 2, " mset msetnx "},
    {RESP_WRITES, 1, 2, 1, " rpoplpush lmove smove rename renamenx brpoplpush blmove "},
    {RESP_WRITES, 1, -2, 1, " blpop brpop bzpopmin bzpopmax "},
    {RESP_NEUTRAL, 0, 0, 0,
     " ping echo select auth hello quit time info role wait waitaof multi watch unwatch publish spublish exists type ttl pttl "
     "expiretime pexpiretime object memory keys scan randomkey dbsize dump strlen getrange substr getbit bitcount bitpos "
     "bitfield_ro lcs hgetall hkeys hvals hlen hexists hstrlen hscan hrandfield httl hpttl hexpiretime hpexpiretime llen lpos "
     "scard smismember srandmember sscan sinter sintercard sunion sdiff zcard zcount zlexcount zmscore zrank zrevrank zrevrange "
     "zrangebyscore zrevrangebyscore zrangebylex zrevrangebylex zrandmember zscan zinter zintercard zunion zdiff geodist geohash "
     "geopos geosearch georadius_ro georadiusbymember_ro xlen xrange xrevrange xread xinfo xpending xreadgroup xack xclaim "
     "xautoclaim sort_ro eval_ro evalsha_ro fcall_ro readonly readwrite asking slowlog commandlog latency lastsave save bgsave "
     "bgrewriteaof command pubsub lolwut "},
    {RESP_ENDS, 0, 0, 0, " exec discard "},
    {RESP_ALL, 0, 0, 0,
     " eval evalsha fcall function flushall flushdb swapdb move copy restore migrate sort sinterstore sunionstore sdiffstore "
     "zinterstore zunionstore zdiffstore zrangestore bitop lmpop zmpop blmpop bzmpop xgroup xsetid georadius georadiusbymember "
     "geosearchstore config acl "},
    {RESP_MUTE, 0, 0, 0,
     " client subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe monitor psync sync replconf reset "},
    {RESP_UNKNOWN, 0, 0, 0, " script "},
};

/* Commands that are RESP_NEUTRAL with some second words. */
static const struct {
    const char *name, *neutral;
} parents[] = {
    {"client", " setname setinfo getname id info list kill pause unpause unblock no-evict no-touch tracking trackinginfo caching "
               "getredir capa maint_notifications "},
    {"config", " get resetstat "},
    {"script", " load exists flush kill show help "}, /* DEBUG answers before a script runs */
};
#define PARENTS (sizeof parents / sizeof *parents)

/* Whether a name is in a list. */
static bool is_in(const char *names, const char *name)
{
    size_t count = strlen(name);
    for (const char *at = names; (at = strchr(at, ' ')) && *++at;)
        if (!strncmp(at, name, count) && at[count] == ' ')
            return true;
    return false;
}

enum resp_kind resp_kind_of(const char *name, int *first, int *last, int *step)
{
    for (size_t rule = 0; *name && rule < sizeof rules / sizeof *rules; rule++) {
        if (!is_in(rules[rule].names, name))
            continue;
        *first = rules[rule].first;
        *last = rules[rule].last;
        *step = rules[rule].step;
        return rules[rule].kind;
    }
    *first = *last = *step = 0;
    return RESP_UNKNOWN;
}

/* ---- commands ---------------------------------------------------------------------------------- */

/* As Redis has them by default. */
#define WORDS_MAX (1u << 20)
#define BYTES_MAX (1ull << 29)

/* A line of one letter and a number that is not negative. Redis takes only its shortest form. */
static bool number(const char *line, size_t count, char letter, uint64_t max, uint64_t *value)
{
    *value = 0;
    if (count < 2 || count > 16 || line[0] != letter || (line[1] == '0' && count > 2))
        return false;
    for (size_t at = 1; at < count; at++) {
        if (line[at] < '0' || line[at] > '9')
            return false;
        *value = *value * 10 + (uint64_t)(line[at] - '0');
    }
    return *value <= max;
}

static bool is_key(const struct resp_command *command)
{
    int64_t last = command->last < 0 ? (int64_t)command->words + command->last : command->last, word = command->word;
    return command->step && word >= command->first && word <= last && (word - command->first) % command->step == 0;
}

/* Whether this word is looked at as text: the name, and of some commands the next one. */
static bool is_text(const struct resp_command *command)
{
    return command->word == 0 || (command->word == 1 && command->parent);
}

static void read_text(struct resp_command *command, const char *bytes, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        char letter = bytes[at];
        if (letter >= 'A' && letter <= 'Z')
            letter = (char)(letter + 'a' - 'A');
        /* A longer name than any, a blank, and a zero are no name. */
        if (command->text_count == sizeof command->text - 1 || letter <= ' ')
            command->text_wrong = true;
        else
            command->text[command->text_count++] = letter;
    }
}

static void end_text(struct resp_command *command)
{
    command->text[command->text_wrong ? 0 : command->text_count] = 0;
    if (command->word == 0) {
        command->kind = resp_kind_of(command->text, &command->first, &command->last, &command->step);
        for (uint8_t parent = 0; parent < PARENTS; parent++)
            if (!strcmp(command->text, parents[parent].name))
                command->parent = parent + 1;
    } else if (*command->text && is_in(parents[command->parent - 1].neutral, command->text)) {
        command->kind = RESP_NEUTRAL;
    }
    command->text_count = 0;
    command->text_wrong = false;
}

/* A line is whole, with its line end. */
static bool end_line(struct resp_command *command)
{
    uint64_t value;
    size_t count = command->line_count - 2u;
    if (command->line_count < 2 || command->line[count] != '\r')
        return false;
    command->line_count = 0;
    if (command->next == RESP_COUNT) {
        if (!number(command->line, count, '*', WORDS_MAX, &value) || !value)
            return false;
        command->words = (uint32_t)value;
        command->next = RESP_LENGTH;
        return true;
    }
    if (!number(command->line, count, '$', BYTES_MAX, &value))
        return false;
    command->left = value;
    command->key = plover_clean_key("", 0);
    command->next = value ? RESP_BYTES : RESP_END;
    return true;
}

/* A word is whole, with its line end. */
static enum resp_step end_word(struct resp_command *command)
{
    enum resp_step step = is_key(command) ? RESP_KEY : RESP_MORE;
    if (is_text(command))
        end_text(command);
    command->word++;
    command->next = RESP_LENGTH;
    return step;
}

/* One line, in RESP_COUNT and RESP_LENGTH. */
static enum resp_step read_letter(struct resp_command *command, char letter)
{
    if (command->line_count == sizeof command->line)
        return RESP_WRONG;
    command->line[command->line_count++] = letter;
    return letter != '\n' || end_line(command) ? RESP_MORE : RESP_WRONG;
}

static bool is_whole(const struct resp_command *command)
{
    return command->words && command->word == command->words;
}

enum resp_step resp_read(struct resp_command *command, const char *bytes, size_t count, size_t *used)
{
    size_t at = 0;
    /* The last word may be a key, which was told first. */
    enum resp_step step = is_whole(command) ? RESP_DONE : RESP_MORE;
    while (at < count && step == RESP_MORE) {
        if (command->next == RESP_BYTES) {
            size_t passed = command->left < count - at ? command->left : count - at;
            if (is_text(command))
                read_text(command, bytes + at, passed);
            if (is_key(command))
                command->key = plover_clean_key_part(command->key, bytes + at, passed);
            at += passed;
            command->left -= passed;
            command->next = command->left ? RESP_BYTES : RESP_END;
        } else if (command->next == RESP_END) {
            /* Redis takes any two bytes here. */
            char letter = bytes[at++];
            if (letter != "\r\n"[command->line_count++])
                step = RESP_WRONG;
            else if (letter == '\n') {
                command->line_count = 0;
                step = end_word(command);
            }
        } else {
            step = read_letter(command, bytes[at++]);
        }
        if (step == RESP_MORE && is_whole(command))
            step = RESP_DONE;
    }
    *used = at;
    return step;
}

/* ---- replies ------------------------------------------------------------------------------------ */

/* A length that is not negative, before the line's end. */
static bool length(const char *line, uint8_t count, uint64_t *value)
{
    return number(line, count, line[0], UINT32_MAX, value);
}

/* The line of an element is whole, without its line end. False if it is not understood. */
static bool end_element(struct resp_reply *reply)
{
    bool outermost = !reply->begun;
    uint64_t value = 0;
    const char *line = reply->line;
    bool none = reply->line_count == 3 && line[1] == '-' && line[2] == '1';
    reply->left = outermost ? 0 : reply->left - 1;
    reply->begun = true;
    switch (line[0]) {
    case ':': /* 0 also counts what is absent */
        reply->absent |= !length(line, reply->line_count, &value) || !value;
        return true;
    case ',':
        return true;
    case '+':
        reply->queued = outermost && reply->line_count == 7 && !memcmp(line, "+QUEUED", 7);
        /* fall through */
    case '-':
    case '_':
    case '#':
    case '(':
        reply->absent = true;
        return true;
    case '!':
    case '=':
        reply->absent = true;
        /* fall through */
    case '$':
        if (none)
            reply->absent = true;
        else if (!length(line, reply->line_count, &value))
            return false;
        else
            reply->skipped = value + 2;
        return true;
    case '%':
        reply->absent = true;
        /* fall through */
    case '*':
    case '~':
        if (!none && !length(line, reply->line_count, &value))
            return false;
        reply->absent |= !value;
        reply->left += line[0] == '%' ? 2 * value : value;
        return true;
    default:
        return false;
    }
}

enum resp_step resp_follow(struct resp_reply *reply, const char *bytes, size_t count, size_t *used)
{
    size_t at = 0;
    *used = 0;
    while (at < count) {
        if (reply->skipped) {
            size_t passed = reply->skipped < count - at ? reply->skipped : count - at;
            reply->skipped -= passed;
            at += passed;
        } else if (bytes[at] != '\n') {
            /* Only the text of an error or a status is longer. */
            if (reply->line_count < sizeof reply->line)
                reply->line[reply->line_count++] = bytes[at];
            at++;
            continue;
        } else {
            at++;
            reply->line_count -= reply->line_count && reply->line[reply->line_count - 1] == '\r';
            if (!reply->line_count || !end_element(reply))
                return RESP_WRONG;
            reply->line_count = 0;
        }
        if (!reply->skipped && !reply->left) {
            *used = at;
            return RESP_DONE;
        }
    }
    *used = at;
    return RESP_MORE;
}
