// Collectives of ranks on one node through shared memory; see meeting.h for how they meet.
//
// A tensor passes through the ranks' slots in pieces. Each rank has two slots and uses them in turns: a
// rank that comes to a meeting has read all of the piece before, so the slot of the piece before that is
// free, and no meeting is needed after a piece.
//
// Sums are float32, added in rank order and rounded once, so each rank has the same bits, however a
// tensor is divided.
#include <cstring>

#include "meeting.h"
#include "vec.h"

namespace {

enum Kind : int64_t { ALL_GATHER = 1, ALL_REDUCE = 2 };  // ALL_REDUCE + dtype

struct Float32 {
    using Stored = float;
    static vf load_lanes(const float* p) { return load(p); }
    static void store_lanes(float* p, vf v) { store(p, v); }
    static float from(float x) { return x; }
    static float to(float x) { return x; }
};

struct BFloat16 {
    using Stored = uint16_t;
    static vf load_lanes(const uint16_t* p) { return load_bf16(p); }
    static void store_lanes(uint16_t* p, vf v) {
        for (int i = 0; i < LANES; i++) p[i] = to_bf16(v[i]);
    }
    static float from(uint16_t x) { return from_bf16(x); }
    static uint16_t to(float x) { return to_bf16(x); }
};

struct Float16 {
    using Stored = uint16_t;
    static vf load_lanes(const uint16_t* p) {
        vf v = zero();
        for (int i = 0; i < LANES; i++) v[i] = from(p[i]);
        return v;
    }
    static void store_lanes(uint16_t* p, vf v) {
        for (int i = 0; i < LANES; i++) p[i] = to(v[i]);
    }
    static float from(uint16_t half) {
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
        if (rest < 0x400) {  // zero or subnormal: a multiple of 2^-24
            float x = (float)rest * 5.9604644775390625e-8f;
            return sign ? -x : x;
        }
        uint32_t exponent = rest >= 0x7c00 ? 0x7f800000 : ((rest >> 10) + 112u) << 23;
        uint32_t word = sign | exponent | (rest & 0x3ff) << 13;
        float x;
        std::memcpy(&x, &word, 4);
        return x;
    }
    // Rounds to nearest, ties to even; NaN stays NaN.
    static uint16_t to(float x) {
        uint32_t word;
        std::memcpy(&word, &x, 4);
        uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
        uint32_t rest = word & 0x7fffffff;
        if (rest > 0x7f800000) return sign | 0x7e00 | (uint16_t)(rest >> 13 & 0x3ff);
        if (rest >= 0x47800000) return sign | 0x7c00;  // 2^16
        if (rest < 0x38800000) {  // below 2^-14: in multiples of 2^-24
            float magic = 0.5f, y;
            std::memcpy(&y, &rest, 4);
            y += magic;  // the last bit of the sum is worth 2^-24
            std::memcpy(&rest, &y, 4);
            return sign | (uint16_t)(rest - 0x3f000000);
        }
        rest += 0xfff + (rest >> 13 & 1);  // carries into the exponent, up to infinity
        return sign | (uint16_t)((rest - 0x38000000) >> 13);
    }
};

// An empty tensor has no address.
inline void copy(void* to, const void* from, long bytes) {
    if (bytes) std::memcpy(to, from, bytes);
}

// One collective: the pieces that its tensor passes in.
class Collective : public Call {
public:
    Collective(Member& member, int64_t its_kind, int64_t its_bytes)
        : Call(member), kind(its_kind), bytes(its_bytes) {}

    unsigned char* slot(long r) const {
        return m.base + CONTROL_BYTES + (2 * r + (m.pieces & 1)) * m.slot_bytes;
    }

    int meet_first() {
        Line& line = m.line(m.rank);
        line.kind[m.pieces & 1].store((uint64_t)kind, std::memory_order_relaxed);
        line.bytes[m.pieces & 1].store((uint64_t)bytes, std::memory_order_relaxed);
        int status = meet(*this);
        return status ? status : compare();
    }

    // A piece is done when all have met for it: this rank still reads slots that will not be written
    // before it comes to the next piece's meeting.
    void end_piece() { m.pieces++; }

private:
    int compare() {
        bool is_same = true;
        for (long r = 0; r < m.size; r++) {
            m.kinds[r] = (int64_t)m.line(r).kind[m.pieces & 1].load(std::memory_order_relaxed);
            m.bytes[r] = (int64_t)m.line(r).bytes[m.pieces & 1].load(std::memory_order_relaxed);
            is_same = is_same && m.kinds[r] == kind && m.bytes[r] == bytes;
        }
        return is_same ? OK : fail(m, DIFFERENT);
    }

    int64_t kind, bytes;
};

// out[i] = inputs[0][i] + inputs[1][i] + ...; `out` may be one of them.
template <class Type, class Stored = typename Type::Stored>
void add_up(Stored* out, const Stored* const* inputs, long ranks, long count) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        vf sum = Type::load_lanes(inputs[0] + i);
        for (long r = 1; r < ranks; r++) sum += Type::load_lanes(inputs[r] + i);
        Type::store_lanes(out + i, sum);
    }
    for (; i < count; i++) {
        float sum = Type::from(inputs[0][i]);
        for (long r = 1; r < ranks; r++) sum += Type::from(inputs[r][i]);
        out[i] = Type::to(sum);
    }
}

// Each rank adds up the whole piece.
template <class Type, class Stored = typename Type::Stored>
int one_shot(Collective& call, Stored* x, long count) {
    Member& m = call.m;
    copy(call.slot(m.rank), x, count * sizeof(Stored));
    if (int status = call.meet_first()) return status;
    const Stored* inputs[MAX_RANKS];
    for (long r = 0; r < m.size; r++) inputs[r] = r == m.rank ? x : (const Stored*)call.slot(r);
    add_up<Type>(x, inputs, m.size, count);
    return OK;
}

// Each rank adds up one part of the piece, and copies the others' sums: less to read than above.
template <class Type, class Stored = typename Type::Stored>
int two_shot(Collective& call, Stored* x, long count) {
    Member& m = call.m;
    auto start = [&](long r) { return r == m.size ? count : count * r / m.size / 32 * 32; };
    long begin = start(m.rank), end = start(m.rank + 1);
    Stored* mine = (Stored*)call.slot(m.rank);
    copy(mine, x, begin * sizeof(Stored));
    copy(mine + end, x + end, (count - end) * sizeof(Stored));
    if (int status = call.meet_first()) return status;
    const Stored* inputs[MAX_RANKS];
    for (long r = 0; r < m.size; r++)
        inputs[r] = (r == m.rank ? x : (const Stored*)call.slot(r)) + begin;
    add_up<Type>(x + begin, inputs, m.size, end - begin);
    copy(mine + begin, x + begin, (end - begin) * sizeof(Stored));
    if (int status = meet(call)) return status;
    for (long r = 0; r < m.size; r++)
        if (r != m.rank) {
            const Stored* theirs = (const Stored*)call.slot(r);
            copy(x + start(r), theirs + start(r), (start(r + 1) - start(r)) * sizeof(Stored));
        }
    return OK;
}

template <class Type, class Stored = typename Type::Stored>
int reduce(Collective& call, Stored* x, long count) {
    Member& m = call.m;
    if (int status = call.begin()) return status;
    long most = m.slot_bytes / (long)sizeof(Stored), done = 0;
    do {
        long piece = count - done < most ? count - done : most;
        bool is_large = piece * (long)sizeof(Stored) > m.two_shot_bytes;
        int status = is_large ? two_shot<Type>(call, x + done, piece)
                              : one_shot<Type>(call, x + done, piece);
        if (status) return status;
        call.end_piece();
        done += piece;
    } while (done < count);
    return OK;
}

// Copies `count` bytes from offset `begin` of rank r's tensor to its rows of the output.
inline void scatter_rows(unsigned char* out, const unsigned char* from, long r, long ranks, long row,
                         long begin, long count) {
    for (long done = 0; done < count;) {
        long at = begin + done, inside = at % row;
        long length = row - inside < count - done ? row - inside : count - done;
        copy(out + (at / row * ranks + r) * row + inside, from + done, length);
        done += length;
    }
}

}  // namespace

// Adds up `count` elements over all ranks, in place.
EXPORT int all_reduce(Member* member, void* x, int64_t count, int dtype) noexcept {
    long bytes = count * (dtype == 0 ? 4 : 2);
    Collective call(*member, ALL_REDUCE + dtype, bytes);
    switch (dtype) {
        case 0: return reduce<Float32>(call, (float*)x, count);
        case 1: return reduce<BFloat16>(call, (uint16_t*)x, count);
        default: return reduce<Float16>(call, (uint16_t*)x, count);
    }
}

// Copies x of every rank, `rows` rows of `row` bytes, to out: [rows, ranks, row].
EXPORT int all_gather(Member* member, const void* x, void* out, int64_t rows, int64_t row) noexcept {
    Member& m = *member;
    long bytes = rows * row, done = 0;
    Collective call(m, ALL_GATHER, bytes);
    if (int status = call.begin()) return status;
    do {
        long piece = bytes - done < m.slot_bytes ? bytes - done : m.slot_bytes;
        const unsigned char* from = (const unsigned char*)x + done;
        copy(call.slot(m.rank), from, piece);
        if (int status = call.meet_first()) return status;
        for (long r = 0; r < m.size; r++)
            scatter_rows((unsigned char*)out, r == m.rank ? from : call.slot(r), r, m.size, row, done, piece);
        call.end_piece();
        done += piece;
    } while (done < bytes);
    return OK;
}

// Starts a call of a link, to send or to receive one message.
EXPORT int begin_message(Member* member) noexcept { return Call(*member).begin(); }

// Waits until another rank has published `number`.
EXPORT int await_number(Member* member, int64_t other, int64_t number) noexcept {
    Call call(*member);
    uint64_t word = member->word(number);
    if (member->is_closed.load(std::memory_order_seq_cst)) return CLOSED;
    return call.wait([&] { return has_arrived(*member, other, word); });
}

// Publishes a number, and wakes the ranks that wait for it.
EXPORT int publish_number(Member* member, int64_t number) noexcept {
    Member& m = *member;
    Call call(m);
    if (m.is_closed.load(std::memory_order_seq_cst)) return CLOSED;
    m.line(m.rank).arrived.store(m.word(number), std::memory_order_seq_cst);
    if (m.control().asleep.load(std::memory_order_seq_cst)) ring(m.control());
    return OK;
}

// Makes the calls of all ranks fail until the next epoch. May be called from any thread.
EXPORT int abort_epoch(Member* member) noexcept {
    if (!member->is_closed.load(std::memory_order_seq_cst)) give_up(*member, ABORTED);
    return OK;
}

// Starts an epoch, in which the rank has called nothing yet.
EXPORT int start_epoch(Member* member, int64_t epoch) noexcept {
    Member& m = *member;
    m.epoch = epoch;
    m.steps = m.pieces = m.calls = 0;
    m.line(m.rank).called.store(m.word(0), std::memory_order_seq_cst);
    m.line(m.rank).arrived.store(m.word(0), std::memory_order_seq_cst);
    return OK;
}

// Makes all ranks' calls fail, and returns when this rank's call, in another thread, has ended.
EXPORT int leave(Member* member) noexcept {
    if (!member->is_closed.load(std::memory_order_seq_cst)) give_up(*member, CLOSED);
    member->is_closed.store(1, std::memory_order_seq_cst);
    while (member->is_busy.load(std::memory_order_seq_cst)) usleep(100);
    return OK;
}
