package nexmark;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.columnar.vector.ColumnVector;
import org.apache.flink.table.data.columnar.vector.TimestampColumnVector;
import org.apache.flink.table.data.columnar.vector.VectorizedColumnBatch;
import org.apache.flink.table.data.columnar.vector.heap.HeapBytesVector;
import org.apache.flink.table.data.columnar.vector.heap.HeapLongVector;

/**
 * The events of {@code clonos_bench.nexmark.Generator}, the same for the same ids, in columns.
 *
 * <p>Only the columns that are asked for are made; text is not copied but points into pools.
 */
final class Events {
    static final int PROPORTION = 50;
    static final long BASE_MS = 1_436_918_400_000L;
    private static final int FIRST_ID = 1000;
    private static final int PERIOD = 1 << 20;
    private static final int LONGEST_FILLER = 1024;
    private static final Pool CITIES =
            Pool.of("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend",
                    "Redmond", "Seattle", "Kent", "Cheyenne");
    private static final Pool STATES = Pool.of("AZ", "CA", "ID", "OR", "WA", "WY");
    private static final Pool NAMES = names();
    private static final Pool ITEMS = Pool.random(20, 3);
    private static final Pool DESCRIPTIONS = Pool.random(100, 4);
    private static final Pool MAILBOXES = Pool.random(7, 1);
    private static final Pool HOSTS = Pool.random(5, 2);
    private static final byte[] FILLER = filler();

    final VectorizedColumnBatch batch;
    private final Kind kind;
    private final long delayUs;
    private final Column[] columns;
    private final long[] ids;

    /** Where in {@link #PROPORTION} consecutive events those of a kind are. */
    enum Kind {
        person(0, 1),
        auction(1, 4),
        bid(4, PROPORTION);

        final int first;
        final int size;

        Kind(int first, int end) {
            this.first = first;
            this.size = end - first;
        }

        long id(long row) {
            return row / size * PROPORTION + first + row % size;
        }

        /** How many of the first events are of this kind. */
        long rows(long events) {
            long rest = Math.min(size, Math.max(0, events % PROPORTION - first));
            return events / PROPORTION * size + rest;
        }
    }

    /** One column of a batch: of what it consists and how it is made. */
    private record Column(ColumnVector vector, Filler filler) {}

    private interface Filler {
        void fill(long[] ids, long firstRow, int rows);
    }

    private interface OneFiller {
        void fill(int i, long id);
    }

    private interface LongOfId {
        long of(long id);
    }

    private interface TextOfId {
        String of(long id);
    }

    Events(Kind kind, String[] names, long delayUs, int capacity) {
        this.kind = kind;
        this.delayUs = delayUs;
        ids = new long[capacity];
        columns = new Column[names.length];
        ColumnVector[] vectors = new ColumnVector[names.length];
        for (int i = 0; i < names.length; i++) {
            columns[i] = column(names[i], capacity);
            vectors[i] = columns[i].vector();
        }
        batch = new VectorizedColumnBatch(vectors);
    }

    /** Makes consecutive rows of the kind. */
    void fill(long firstRow, int rows) {
        for (int i = 0; i < rows; i++) {
            ids[i] = kind.id(firstRow + i);
        }
        for (Column column : columns) {
            column.filler().fill(ids, firstRow, rows);
        }
        batch.setNumRows(rows);
    }

    long timeMs(long id) {
        return BASE_MS + id * delayUs / 1000;
    }

    /** Of a table: the pair of kind and column says what it is. */
    private Column column(String name, int capacity) {
        switch (kind + "." + name) {
            case "person.id": return longs(id -> lastPerson(id) + FIRST_ID, capacity);
            case "person.name": return pooled(NAMES, 0, 0, capacity);
            case "person.email_address": return built(Events::mail, capacity);
            case "person.credit_card": return built(Events::card, capacity);
            case "person.city": return pooled(CITIES, 0, 16, capacity);
            case "person.state": return pooled(STATES, 0, 32, capacity);
            case "person.extra": return filled(137, 1, capacity);
            case "auction.id": return longs(id -> lastAuction(id) + FIRST_ID, capacity);
            case "auction.item_name": return pooled(ITEMS, 1, 0, capacity);
            case "auction.description": return pooled(DESCRIPTIONS, 1, 32, capacity);
            case "auction.initial_bid": return longs(id -> price(draw(id, 2)), capacity);
            case "auction.reserve":
                return longs(id -> price(draw(id, 2)) + price(draw(id, 3)), capacity);
            case "auction.expires": return times(this::expires, capacity);
            case "auction.seller": return longs(Events::seller, capacity);
            case "auction.category": return longs(id -> 10 + below(draw(id, 0) >>> 40, 5), capacity);
            case "auction.extra": return filled(382, 2, capacity);
            case "bid.auction": return longs(Events::bidOn, capacity);
            case "bid.bidder": return longs(Events::bidder, capacity);
            case "bid.price": return longs(id -> price(draw(id, 1)), capacity);
            case "bid.extra": return filled(68, 3, capacity);
            case "person.date_time":
            case "auction.date_time":
            case "bid.date_time":
                return times(this::timeMs, capacity);
            default: throw new IllegalArgumentException("no column " + name + " of " + kind);
        }
    }

    private static Column longs(LongOfId make, int capacity) {
        HeapLongVector made = new HeapLongVector(capacity);
        return new Column(made, each((i, id) -> made.vector[i] = make.of(id)));
    }

    private static Column times(LongOfId make, int capacity) {
        long[] made = new long[capacity];
        TimestampColumnVector vector =
                new TimestampColumnVector() {
                    @Override
                    public TimestampData getTimestamp(int i, int precision) {
                        return TimestampData.fromEpochMillis(made[i]);
                    }

                    @Override
                    public boolean isNullAt(int i) {
                        return false;
                    }
                };
        return new Column(vector, each((i, id) -> made[i] = make.of(id)));
    }

    private static Column pooled(Pool pool, int number, int shift, int capacity) {
        HeapBytesVector made = pointing(pool.text, capacity);
        OneFiller fill =
                (i, id) -> {
                    int chosen = pool.choose(draw(id, number) >>> shift);
                    made.start[i] = pool.start[chosen];
                    made.length[i] = pool.start[chosen + 1] - pool.start[chosen];
                };
        return new Column(made, each(fill));
    }

    private static Column built(TextOfId make, int capacity) {
        HeapBytesVector made = new HeapBytesVector(capacity);
        OneFiller fill =
                (i, id) -> {
                    if (i == 0) {
                        made.reset();
                    }
                    byte[] text = make.of(id).getBytes(StandardCharsets.US_ASCII);
                    made.appendBytes(i, text, 0, text.length);
                };
        return new Column(made, each(fill));
    }

    /** Text of the given mean length, cut out of one long text. */
    private static Column filled(int mean, int salt, int capacity) {
        HeapBytesVector made = pointing(FILLER, capacity);
        Filler fill =
                (ids, firstRow, rows) -> {
                    long start = cut(firstRow, mean, salt);
                    for (int i = 0; i < rows; i++) {
                        long next = cut(firstRow + i + 1, mean, salt);
                        made.start[i] = (int) (start % PERIOD);
                        made.length[i] = (int) (next - start);
                        start = next;
                    }
                };
        return new Column(made, fill);
    }

    private static long cut(long row, int mean, int salt) {
        long jitter = mix(row + ((long) salt << 48));
        return row * mean + Long.remainderUnsigned(jitter, Math.max(1, mean / 5));
    }

    private static Filler each(OneFiller one) {
        return (ids, firstRow, rows) -> {
            for (int i = 0; i < rows; i++) {
                one.fill(i, ids[i]);
            }
        };
    }

    private static HeapBytesVector pointing(byte[] text, int capacity) {
        HeapBytesVector vector = new HeapBytesVector(capacity);
        vector.buffer = text;
        return vector;
    }

    private long expires(long id) {
        long now = timeMs(id);
        long ahead = timeMs(id + 100 * PROPORTION / 3) - now;
        return now + 1 + below(draw(id, 4), Math.max(2 * ahead, 1));
    }

    private static long seller(long id) {
        long draws = draw(id, 0);
        long hot = lastPerson(id) / 100 * 100;
        return ((draws & 3) != 0 ? hot : nextPerson(id, draws >>> 8)) + FIRST_ID;
    }

    private static long bidOn(long id) {
        long draws = draw(id, 0);
        long last = lastAuction(id);
        long low = Math.max(last - 100, 0);
        long auction =
                (draws & 1) != 0 ? last / 100 * 100 : low + below(draws >>> 8, last - low + 1 + 10);
        return auction + FIRST_ID;
    }

    private static long bidder(long id) {
        long draws = draw(id, 0);
        boolean isHot = (draws >>> 2 & 3) != 0;
        long hot = lastPerson(id) / 100 * 100 + 1;
        return (isHot ? hot : nextPerson(id, draws >>> 32)) + FIRST_ID;
    }

    private static String mail(long id) {
        long draws = draw(id, 2);
        return MAILBOXES.get(draws) + "@" + HOSTS.get(draws >>> 32) + ".com";
    }

    private static String card(long id) {
        long draws = draw(id, 1);
        StringBuilder card = new StringBuilder();
        for (int i = 0; i < 4; i++) {
            long quarter = (draws >>> (16 * i) & 0xFFFF) % 10_000;
            card.append(i == 0 ? "" : " ").append(String.format("%04d", quarter));
        }
        return card.toString();
    }

    private static long lastPerson(long id) {
        return id / PROPORTION;
    }

    private static long lastAuction(long id) {
        return id / PROPORTION * 3 + Math.min(id % PROPORTION, 3) - 1;
    }

    private static long nextPerson(long id, long draws) {
        long people = lastPerson(id) + 1;
        long active = Math.min(people, 1000);
        return people - active + below(draws, active + 10);
    }

    private static long price(long draws) {
        return (long) Math.rint(Math.pow(10.0, (draws >>> 11) * (6.0 / (1L << 53))) * 100.0);
    }

    private static long below(long draws, long limit) {
        return (draws & 0xFFFFFF) * limit >>> 24;
    }

    private static long draw(long id, int number) {
        return mix((id << 3) + number + 1);
    }

    private static long mix(long value) {
        long z = value * 0x9E3779B97F4A7C15L;
        z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
        z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
        return z ^ z >>> 31;
    }

    private static byte[] filler() {
        byte[] text = new byte[PERIOD + LONGEST_FILLER];
        for (int i = 0; i < text.length; i++) {
            long draws = mix(i % PERIOD + (1L << 40));
            text[i] = (byte) ('a' + Long.remainderUnsigned(draws, 26));
        }
        return text;
    }

    private static Pool names() {
        List<String> all = new ArrayList<>();
        String[] firsts = {"Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie",
            "Sarah", "Deiter", "Walter"};
        String[] lasts = {"Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith",
            "Jones", "Noris"};
        for (String first : firsts) {
            for (String last : lasts) {
                all.add(first + " " + last);
            }
        }
        return Pool.of(all.toArray(new String[0]));
    }

    /** Strings to choose from, one behind the other. */
    private static final class Pool {
        private static final int SIZE = 1024;
        final byte[] text;
        final int[] start;

        private Pool(byte[] text, int[] start) {
            this.text = text;
            this.start = start;
        }

        static Pool of(String... strings) {
            int[] start = new int[strings.length + 1];
            for (int i = 0; i < strings.length; i++) {
                start[i + 1] = start[i] + strings[i].length();
            }
            return new Pool(String.join("", strings).getBytes(StandardCharsets.US_ASCII), start);
        }

        static Pool random(int lengthMax, int seed) {
            String[] made = new String[SIZE];
            for (int i = 0; i < SIZE; i++) {
                long first = (long) (seed * SIZE + i) << 8;
                long size = 3 + Long.remainderUnsigned(mix(first + lengthMax), lengthMax - 3);
                StringBuilder text = new StringBuilder();
                for (int at = 0; at < size; at++) {
                    long draws = mix(first + at);
                    boolean isBlank = Long.remainderUnsigned(draws, 13) == 0;
                    text.append(isBlank ? ' ' : (char) ('a' + (draws >>> 32) % 26));
                }
                made[i] = text.toString().strip();
            }
            return of(made);
        }

        int choose(long draws) {
            return (int) ((draws & 0xFFFF) % (start.length - 1));
        }

        String get(long draws) {
            int i = choose(draws);
            return new String(text, start[i], start[i + 1] - start[i], StandardCharsets.US_ASCII);
        }
    }
}
