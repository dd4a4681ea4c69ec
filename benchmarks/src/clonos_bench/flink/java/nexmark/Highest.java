package nexmark;

import java.util.Arrays;
import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.annotation.FunctionHint;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.functions.AggregateFunction;
import org.apache.flink.types.Row;

/** The bids that tie for the highest price. */
@FunctionHint(output = @DataTypeHint(Highest.BIDS))
public final class Highest extends AggregateFunction<Row[], Highest.Tied> {
    private static final long serialVersionUID = 1L;
    static final String BIDS =
            "ARRAY<ROW<auction BIGINT, bidder BIGINT, bid_time TIMESTAMP(3), extra STRING>>";

    /** The highest price so far, and its bids. */
    public static final class Tied {
        public long price = Long.MIN_VALUE;

        @DataTypeHint(BIDS)
        public Row[] bids = {};

        void add(long newPrice, Row... newBids) {
            if (newPrice > price) {
                price = newPrice;
                bids = newBids;
            } else if (newPrice == price) {
                Row[] both = Arrays.copyOf(bids, bids.length + newBids.length);
                System.arraycopy(newBids, 0, both, bids.length, newBids.length);
                bids = both;
            }
        }
    }

    @Override
    public Tied createAccumulator() {
        return new Tied();
    }

    /** Called by Flink for every bid: only what is kept is turned into objects. */
    public void accumulate(
            Tied tied,
            Long price,
            Long auction,
            Long bidder,
            @DataTypeHint(value = "TIMESTAMP(3)", bridgedTo = TimestampData.class)
                    TimestampData time,
            @DataTypeHint(value = "STRING", bridgedTo = StringData.class) StringData extra) {
        if (price >= tied.price) {
            Row bid = Row.of(auction, bidder, time.toLocalDateTime(), extra.toString());
            tied.add(price, bid);
        }
    }

    /** Called by Flink for what was aggregated before the shuffle. */
    public void merge(Tied tied, Iterable<Tied> others) {
        for (Tied other : others) {
            tied.add(other.price, other.bids);
        }
    }

    @Override
    public Row[] getValue(Tied tied) {
        return tied.bids;
    }
}
