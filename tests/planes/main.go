// A control plane for tests: go-control-plane's own server and snapshot cache. Each line of a pipe is a snapshot,
// {"version": "1", "configs": [RateLimitConfig, ...]}; each line of its output is its port, or a request of a client.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rules "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
)

func main() {
	pipe := flag.String("pipe", "", "the named pipe")
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	node := flag.String("node", "default", "the node that has the snapshots")
	cert := flag.String("cert", "", "certificate; with it TLS 1.3, and clients must have one too")
	key := flag.String("key", "", "its private key")
	ca := flag.String("ca", "", "the CA of clients")
	flag.Parse()

	ctx := context.Background()
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(stream int64, request *discovery.DiscoveryRequest) error {
			line, err := json.Marshal(map[string]any{
				"stream": stream, "version": request.VersionInfo, "nonce": request.ResponseNonce,
				"error": request.GetErrorDetail().GetMessage(), "code": request.GetErrorDetail().GetCode(),
			})
			fmt.Println(string(line))
			return err
		},
	}
	var options []grpc.ServerOption
	if *cert != "" {
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS13,
			// Read anew for each connection, as Envoy Gateway does.
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				own, err := tls.LoadX509KeyPair(*cert, *key)
				if err != nil {
					return nil, err
				}
				pem, err := os.ReadFile(*ca)
				if err != nil {
					return nil, err
				}
				clients := x509.NewCertPool()
				clients.AppendCertsFromPEM(pem)
				return &tls.Config{
					MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"},
					ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
				}, nil
			},
		})))
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("{\"port\": %d}\n", listener.Addr().(*net.TCPAddr).Port)
	serving := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(serving, server.NewServer(ctx, snapshots, callbacks))
	go func() { log.Fatal(serving.Serve(listener)) }()

	input, err := os.OpenFile(*pipe, os.O_RDWR, 0) // also for writing: it never ends
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewReaderSize(input, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var given struct {
			Version string
			Configs []json.RawMessage
		}
		if err := json.Unmarshal(line, &given); err != nil {
			log.Fatal(err)
		}
		configs := make([]types.Resource, len(given.Configs))
		for index, each := range given.Configs {
			config := &rules.RateLimitConfig{}
			if err := protojson.Unmarshal(each, config); err != nil {
				log.Fatal(err)
			}
			configs[index] = config
		}
		snapshot, err := cache.NewSnapshot(given.Version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: configs})
		if err == nil {
			err = snapshots.SetSnapshot(ctx, *node, snapshot)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
