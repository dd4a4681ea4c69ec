package nexmark;

import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.ProviderContext;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.source.DataStreamScanProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsSourceWatermark;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.functions.LookupFunction;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.types.RowKind;

/** The connector "nexmark": sources of events, the side input, and the sink. */
public final class Tables implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    private static final ConfigOption<String> KIND =
            ConfigOptions.key("kind").stringType().noDefaultValue();
    private static final ConfigOption<Long> EVENTS =
            ConfigOptions.key("events").longType().defaultValue(0L);
    private static final ConfigOption<Long> DELAY_US =
            ConfigOptions.key("delay-us").longType().defaultValue(100L);
    private static final ConfigOption<Long> BLOCK_EVENTS =
            ConfigOptions.key("block-events").longType().defaultValue(10_000L);
    private static final ConfigOption<Long> BEGAN_MS =
            ConfigOptions.key("began-ms").longType().defaultValue(0L);
    private static final ConfigOption<Long> WATERMARK_MS =
            ConfigOptions.key("watermark-ms").longType().defaultValue(200L);
    private static final ConfigOption<Long> AHEAD_ROWS =
            ConfigOptions.key("ahead-rows").longType().defaultValue(0L);
    private static final ConfigOption<Long> DRIFT_MS =
            ConfigOptions.key("drift-ms").longType().defaultValue(0L);
    private static final ConfigOption<String> FOLDER =
            ConfigOptions.key("folder").stringType().noDefaultValue();

    private static final Duration ALIGNED_EVERY = Duration.ofMillis(50);

    @Override
    public String factoryIdentifier() {
        return "nexmark";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(KIND);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of(
                EVENTS, DELAY_US, BLOCK_EVENTS, BEGAN_MS, WATERMARK_MS, AHEAD_ROWS, DRIFT_MS,
                FOLDER);
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        ReadableConfig options = options(context);
        if (options.get(KIND).equals("side")) {
            return new SideInput();
        }
        EventSource.Settings settings =
                new EventSource.Settings(
                        options.get(EVENTS), options.get(DELAY_US), options.get(BLOCK_EVENTS),
                        options.get(BEGAN_MS), options.get(WATERMARK_MS),
                        options.get(AHEAD_ROWS));
        String[] columns =
                context.getCatalogTable().getResolvedSchema().getColumns().stream()
                        .filter(Column::isPhysical)
                        .map(Column::getName)
                        .toArray(String[]::new);
        return new Scan(
                Events.Kind.valueOf(options.get(KIND)),
                columns,
                settings,
                options.get(DRIFT_MS),
                context.getPhysicalRowDataType());
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        return new Output(context.getPhysicalRowDataType(), options(context).get(FOLDER));
    }

    private ReadableConfig options(Context context) {
        FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
        helper.validate();
        return helper.getOptions();
    }

    /** Makes only the columns that a query reads, and says itself how far time has come. */
    private static final class Scan
            implements ScanTableSource, SupportsProjectionPushDown, SupportsSourceWatermark {
        private final Events.Kind kind;
        private final EventSource.Settings settings;
        private final long driftMs;
        private String[] columns;
        private DataType type;

        Scan(
                Events.Kind kind,
                String[] columns,
                EventSource.Settings settings,
                long driftMs,
                DataType type) {
            this.kind = kind;
            this.columns = columns;
            this.settings = settings;
            this.driftMs = driftMs;
            this.type = type;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            EventSource source = new EventSource(kind, columns, settings);
            return driftMs == 0
                    ? SourceProvider.of(source)
                    : new Aligned(source, driftMs, context.createTypeInformation(type));
        }

        @Override
        public boolean supportsNestedProjection() {
            return false;
        }

        @Override
        public void applyProjection(int[][] fields, DataType type) {
            String[] all = columns;
            columns = List.of(fields).stream().map(path -> all[path[0]]).toArray(String[]::new);
            this.type = type;
        }

        @Override
        public void applySourceWatermark() {}

        @Override
        public DynamicTableSource copy() {
            return new Scan(kind, columns, settings, driftMs, type);
        }

        @Override
        public String asSummaryString() {
            return "Nexmark " + kind;
        }
    }

    /** A source that waits when its watermark is too far ahead of those of the others. */
    private record Aligned(EventSource source, long driftMs, TypeInformation<RowData> type)
            implements DataStreamScanProvider {
        @Override
        public DataStream<RowData> produceDataStream(
                ProviderContext context, StreamExecutionEnvironment environment) {
            WatermarkStrategy<RowData> strategy =
                    WatermarkStrategy.<RowData>noWatermarks()
                            .withWatermarkAlignment(
                                    "nexmark", Duration.ofMillis(driftMs), ALIGNED_EVERY);
            return environment.fromSource(source, strategy, source.toString(), type);
        }

        @Override
        public boolean isBounded() {
            return source.getBoundedness() == Boundedness.BOUNDED;
        }
    }

    /** Rows (i, str(i)), looked up in memory. */
    private static final class SideInput implements LookupTableSource {
        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            return LookupFunctionProvider.of(new Lookup());
        }

        @Override
        public DynamicTableSource copy() {
            return new SideInput();
        }

        @Override
        public String asSummaryString() {
            return "Nexmark side input";
        }
    }

    /** Public for the code that Flink generates. */
    public static final class Lookup extends LookupFunction {
        private static final long serialVersionUID = 1L;
        private static final int ROWS = 500;
        private transient List<List<RowData>> rows;

        @Override
        public void open(org.apache.flink.table.functions.FunctionContext context) {
            rows = IntStream.range(0, ROWS).mapToObj(Lookup::row).toList();
        }

        private static List<RowData> row(int key) {
            return List.of(
                    GenericRowData.of((long) key, StringData.fromString(Integer.toString(key))));
        }

        @Override
        public Collection<RowData> lookup(RowData key) {
            long wanted = key.getLong(0);
            return 0 <= wanted && wanted < ROWS ? rows.get((int) wanted) : List.of();
        }
    }

    private static final class Output implements DynamicTableSink {
        private final DataType type;
        private final String folder;

        Output(DataType type, String folder) {
            this.type = type;
            this.folder = folder;
        }

        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            if (folder != null) {
                return requested;
            }
            // Nobody looks at the rows: as Flink's own "blackhole", spare the retractions.
            ChangelogMode.Builder kinds = ChangelogMode.newBuilder();
            requested.getContainedKinds().stream()
                    .filter(kind -> kind != RowKind.UPDATE_BEFORE)
                    .forEach(kinds::addContainedKind);
            return kinds.build();
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            List<LogicalType> types = type.getLogicalType().getChildren();
            RowData.FieldGetter[] fields =
                    IntStream.range(0, types.size())
                            .mapToObj(i -> RowData.createFieldGetter(types.get(i), i))
                            .toArray(RowData.FieldGetter[]::new);
            return SinkV2Provider.of(new RowSink(fields, folder));
        }

        @Override
        public DynamicTableSink copy() {
            return new Output(type, folder);
        }

        @Override
        public String asSummaryString() {
            return "Nexmark sink";
        }
    }
}
